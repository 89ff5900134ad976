#!/bin/sh
# Two programs of a Debian whose glibc is older than that of the command `sidestep` talk through shared memory.
# `old_glibc.sh ROOT`: the system, with the package's files and packaged.py in it. In namespaces of its own.
set -eu

root=$1
log=$root/trial
fail() { echo "old_glibc.sh: $*" >&2; exit 1; }
python() {
    chroot "$root" /usr/bin/env LD_PRELOAD=/usr/lib/sidestep/libsidestep.so SIDESTEP_OPTIONS='mode=smc promotion=early' \
        /usr/bin/python3 "$@"
}

mount -t proc proc "$root/proc"
ip link set lo up
release=$(python -c 'import os; print(os.confstr("CS_GNU_LIBC_VERSION"))')
python /trial/packaged.py serve 7001 > "$log/server.log" 2>&1 &
server=$!
python /trial/packaged.py talk 7001 /trial/counted /trial/stop > "$log/client.log" 2>&1 &
client=$!
for _ in $(seq 600); do
    [ "$("$root/usr/bin/sidestep" ss | grep -c '^SMC-D ' || true)" = 2 ] && break
    kill -0 "$client" 2>/dev/null || fail "the client has ended: $(cat "$log/client.log")"
    sleep 0.1
done
[ "$("$root/usr/bin/sidestep" ss | grep -c '^SMC-D ')" = 2 ] || fail "not in shared memory: $("$root/usr/bin/sidestep" ss)"
touch "$log/stop"
wait "$client" || fail "the client: $(cat "$log/client.log")"
wait "$server" || fail "the server: $(cat "$log/server.log")"
[ ! -s "$log/server.log" ] || fail "the loader: $(cat "$log/server.log")"
echo "$release"
