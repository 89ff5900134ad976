#!/bin/sh
# podman loads the image that `cargo xtask dist` makes, and runs it: the command, the library it has for others, the agent.
# `image.sh IMAGE SCRATCH VERSION`; in a mount namespace of its own.
set -eu

image=$1 scratch=$2 version=$3
fail() { echo "image.sh: $*" >&2; exit 1; }

# podman wants control groups of version 2, and storage that is nobody else's.
umount --lazy /sys/fs/cgroup 2> /dev/null || true
mount -t cgroup2 none /sys/fs/cgroup
printf '[storage]\ndriver = "vfs"\nrunroot = "%s/run"\ngraphroot = "%s/graph"\n' "$scratch" "$scratch" > "$scratch/storage.conf"
export CONTAINERS_STORAGE_CONF="$scratch/storage.conf"

name=$(podman load --quiet --input "$image" | sed -n 's/^Loaded image: *//p')
[ "$name" = "localhost/sidestep:$version" ] || fail "podman loads '$name'"
run() {
    podman run --rm --cgroups=disabled --network=none --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 "$name" "$@"
}
said=$(run --version)
[ "$said" = "sidestep $version" ] || fail "it says '$said'"
run --help | grep -q "Usage: sidestep" || fail "its help is none"
# A program of the image under its own library: what examines it finds both.
run doctor /usr/bin/sidestep > "$scratch/doctor" || true
grep -q "/usr/lib/sidestep/libsidestep.so" "$scratch/doctor" || fail "no library: $(cat "$scratch/doctor")"
echo "podman runs $name: $said"
