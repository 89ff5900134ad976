#!/bin/sh
# Two containers of podman, one of musl and one of glibc, talk through shared memory: all that they are given is a device, and then
# nothing, by `sidestep enable --container-runtime`.
# `containers.sh SIDESTEP SCRATCH PORT SEED`; in SCRATCH are outsider-musl and outsider-peer. In a mount and a network namespace of its own.
set -eu

sidestep=$1 scratch=$2 port=$3 seed=$4
fail() { echo "containers.sh: $*" >&2; exit 1; }

ip link set lo up
# podman wants control groups of version 2, and storage and a configuration that are nobody else's.
umount --lazy /sys/fs/cgroup 2> /dev/null || true
mount -t cgroup2 none /sys/fs/cgroup
mkdir -p /etc/cdi "$scratch/cdi" "$scratch/musl/bin" "$scratch/musl/lib" "$scratch/glibc/bin" "$scratch/glibc/lib"
mount --bind "$scratch/cdi" /etc/cdi
printf '[storage]\ndriver = "vfs"\nrunroot = "%s/run"\ngraphroot = "%s/graph"\n' "$scratch" "$scratch" > "$scratch/storage.conf"
export CONTAINERS_STORAGE_CONF="$scratch/storage.conf"
printf '[policy]\nshare_with_users = ["root"]\n' > "$scratch/sidestep.toml"
mkdir -p /etc/sidestep
mount -t tmpfs none /etc/sidestep
cp "$scratch/sidestep.toml" /etc/sidestep/
mkdir -p /etc/containers/containers.conf.d /etc/tmpfiles.d
mount -t tmpfs none /etc/containers/containers.conf.d
mount -t tmpfs none /etc/tmpfiles.d
"$sidestep" generate cdi > /etc/cdi/sidestep.json

cp "$scratch/outsider-musl" "$scratch/musl/bin/outsider"
cp --dereference /lib/ld-musl-*.so.1 "$scratch/musl/lib"
cp "$scratch/outsider-peer" "$scratch/glibc/bin/outsider"
for file in $(ldd "$scratch/outsider-peer" | grep -o '/[^ ]*') /lib/*-linux-gnu/libpthread.so.0 /lib/*-linux-gnu/libdl.so.2; do
    cp --dereference "$file" "$scratch/glibc/lib"
done
ln --symbolic --force --no-dereference lib "$scratch/glibc/lib64"
for libc in musl glibc; do
    mkdir -p "$scratch/$libc/proc"
    tar --create --directory "$scratch/$libc" . | podman import --quiet - "localhost/$libc" > /dev/null
done

# The limits are lower than podman's own, which root of a container may not set.
run() {
    podman run --rm --interactive --cgroups=disabled --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 "$@"
}
trap 'podman rm --force --time 0 server > /dev/null 2>&1' EXIT
mkfifo "$scratch/hold"

# A connection between two containers with these options moves, or (`talk TCP`) does not.
talk() {
    mode=$1
    shift
    # The port of the one before is still held by its connection that has ended.
    port=$((port + 1))
    rm -f "$scratch/client.log"
    run --name server --network=host "$@" localhost/musl /bin/outsider calls server "$port" > "$scratch/server.log" 2>&1 &
    server=$!
    for _ in $(seq 600); do
        ss --no-header --listening --tcp --numeric "sport = :$port" | grep -q . && break
        sleep 0.1
    done
    run --network=host "$@" localhost/glibc /bin/outsider calls client "$port" "$seed" \
        < "$scratch/hold" > "$scratch/client.log" 2>&1 &
    client=$!
    exec 9> "$scratch/hold"
    for _ in $(seq 600); do
        grep -q verified "$scratch/client.log" && break
        kill -0 "$client" 2> /dev/null || fail "the client has ended: $(cat "$scratch/client.log" "$scratch/server.log")"
        sleep 0.1
    done
    seen=$("$sidestep" ss | grep "127.0.0.1:$port " || true)
    exec 9>&-
    wait "$client" || fail "the client: $(cat "$scratch/client.log")"
    podman rm --force --time 0 server > /dev/null 2>&1 || true
    wait "$server" || true
    case $mode in
        SMC-D) [ "$(echo "$seen" | grep -c '^SMC-D ')" = 2 ] || fail "$*: not in shared memory: $seen" ;;
        TCP) [ -z "$seen" ] || fail "$*: under Sidestep: $seen" ;;
    esac
}

talk SMC-D --device sidestep.dev/smc=pod
"$sidestep" enable --container-runtime > /dev/null
talk SMC-D
"$sidestep" disable --container-runtime > /dev/null
talk TCP
cat "$scratch/client.log"
