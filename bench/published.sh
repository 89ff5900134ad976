#!/bin/sh
# Redis in one container of podman and its client in another one, which calls a port that is published: the rates of both, as
# redis-benchmark prints them. `published.sh SIDESTEP SCRATCH GROUP smc|tcp SECONDS`, as root in the control group GROUP, and
# in mount and network namespaces of its own.
set -eu

sidestep=$1 scratch=$2 group=$3 transport=$4 seconds=$5
fail() { echo "published.sh: $*" >&2; exit 1; }

rm -rf "$scratch"
mkdir -p "$scratch/agent" "$scratch/root/bin" "$scratch/root/lib" "$scratch/root/proc" "$scratch/root/tmp" "$scratch/cdi"
printf '[smc]\nagent_socket = "%s/agent/agent.sock"\n[share]\npairs = [["root", "root"]]\n' "$scratch" > "$scratch/sidestep.toml"
ip link set lo up
mkdir -p /etc/sidestep /etc/cdi
mount -t tmpfs none /etc/sidestep
cp "$scratch/sidestep.toml" /etc/sidestep/
"$sidestep" agent --cgroup "$group" --socket "$scratch/agent/agent.sock" > "$scratch/agent.log" 2>&1 &
agent=$!
trap 'podman rm --force --all --time 0 > /dev/null 2>&1; kill "$agent"; rm -rf "$scratch/run"' EXIT
for _ in $(seq 100); do
    [ -S "$scratch/agent/agent.sock" ] && break
    kill -0 "$agent" 2> /dev/null || fail "the agent has ended: $(cat "$scratch/agent.log")"
    sleep 0.1
done

# podman wants control groups of version 2, and storage and a configuration that are nobody else's.
umount --lazy /sys/fs/cgroup 2> /dev/null || true
mount -t cgroup2 none /sys/fs/cgroup
mount --bind "$scratch/cdi" /etc/cdi
printf '[storage]\ndriver = "vfs"\nrunroot = "%s/run"\ngraphroot = "%s/graph"\n' "$scratch" "$scratch" > "$scratch/storage.conf"
export CONTAINERS_STORAGE_CONF="$scratch/storage.conf"
"$sidestep" generate cdi > /etc/cdi/sidestep.json

for program in redis-server redis-benchmark; do
    file=$(command -v "$program")
    cp --dereference "$file" "$scratch/root/bin"
    for library in $(ldd "$file" | grep -o '/[^ ]*'); do
        cp --dereference "$library" "$scratch/root/lib"
    done
done
# What the library names for earlier releases of glibc, and every image of a distribution has.
for library in /lib/*-linux-gnu/libpthread.so.0 /lib/*-linux-gnu/libdl.so.2; do
    cp --dereference "$library" "$scratch/root/lib"
done
ln --symbolic --force --no-dereference lib "$scratch/root/lib64"
tar --create --directory "$scratch/root" . | podman import --quiet - localhost/redis > /dev/null

device=
[ "$transport" = tcp ] || device="--device sidestep.dev/smc=all"
# The limits are lower than podman's own, which root of a container may not set.
run() {
    # shellcheck disable=SC2086
    podman run --cgroups=disabled --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 $device "$@"
}
run --detach --name server --publish 6379:6379 localhost/redis \
    /bin/redis-server --save '' --appendonly no --protected-mode no --bind 0.0.0.0 > /dev/null
gateway=$(podman inspect --format '{{.NetworkSettings.Gateway}}' server)
benchmark() {
    run --rm localhost/redis /bin/redis-benchmark -h "$gateway" -t set,get -d 2048 -c 1 -n "$1" --csv
}
rate() { sed -n 's/^"GET","\([0-9]*\).*/\1/p'; }
probed=$(benchmark 2000 | rate)
[ -n "$probed" ] || fail "no rate: $(podman logs server 2>&1)"
# Enough of them for a connection that has moved.
[ "$transport" = tcp ] || probed=$(benchmark $((probed * 2)) | rate)
benchmark "$(awk "BEGIN { print int($probed * $seconds) }")" > "$scratch/benchmark.csv" &
client=$!
moved=0
while [ "$transport" = smc ] && [ "$moved" != 2 ] && kill -0 "$client" 2> /dev/null; do
    moved=$("$sidestep" ss | grep -c '^SMC-D .*:6379 ' || true)
    sleep 0.05
done
wait "$client"
[ "$transport" = tcp ] || [ "$moved" = 2 ] || fail "not in shared memory: $moved of 2 ends"
cat "$scratch/benchmark.csv"
