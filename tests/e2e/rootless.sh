#!/bin/sh
# Containers of an ordinary user, by podman without root, among themselves and beside one of root with a published port: which connections
# move. `rootless.sh SIDESTEP SCRATCH GROUP SEED`, as root in the control group GROUP, and in mount and network namespaces of its own; in
# SCRATCH is outsider-peer.
set -eu

sidestep=$1 scratch=$2 group=$3 seed=$4
user=podder uid=4711
home=/home/$user
fail() { echo "rootless.sh: $*" >&2; exit 1; }

# What the user has to reach is in a place of its own, and so are the files that say who the user is.
ip link set lo up
mount --make-rshared /
mount -t tmpfs none /home
mkdir -p "$home/bin" /run/user
for file in passwd group subuid subgid; do
    touch "/etc/$file"
    cp "/etc/$file" "$scratch/$file"
done
echo "$user:x:$uid:$uid::$home:/bin/sh" >> "$scratch/passwd"
echo "$user:x:$uid:" >> "$scratch/group"
for file in subuid subgid; do echo "$user:500000:65536" > "$scratch/$file"; done
for file in passwd group subuid subgid; do mount --bind "$scratch/$file" "/etc/$file"; done
mount -t tmpfs none /run/user
mkdir "/run/user/$uid"
# Where it is for root only, as udev would have it for all.
for device in "net/tun 200" "fuse 229"; do
    name=${device% *}
    [ -e "/dev/$name" ] || continue
    mknod "$home/device-${device#* }" c 10 "${device#* }"
    chmod 666 "$home/device-${device#* }"
    mount --bind "$home/device-${device#* }" "/dev/$name"
done

cp "$sidestep" "${sidestep%/*}/libsidestep.so" "$home/bin"
sidestep=$home/bin/sidestep
mkdir -p /etc/sidestep /etc/cdi /etc/containers/containers.conf.d /etc/tmpfiles.d "$home/agent"
for directory in /etc/sidestep /etc/cdi /etc/containers/containers.conf.d /etc/tmpfiles.d; do mount -t tmpfs none "$directory"; done
# configure LINES: what containers get from now on, and the agent reads.
configure() {
    printf '[smc]\nagent_socket = "%s/agent/agent.sock"\n%s\n' "$home" "$1" > /etc/sidestep/sidestep.toml
    "$sidestep" generate cdi > /etc/cdi/sidestep.json
}
configure "[share]
pairs = [[\"$user\", \"root\"]]"
"$sidestep" agent --cgroup "$group" --socket "$home/agent/agent.sock" > "$scratch/agent.log" 2>&1 &
agent=$!
# The user's podman keeps a process that holds its namespaces.
end() {
    as_user podman rm --force --all --time 0
    podman rm --force --all --time 0
    kill "$agent" "$(cat "/run/user/$uid/libpod/tmp/pause.pid")"
}
trap 'end > /dev/null 2>&1' EXIT
for _ in $(seq 600); do
    [ -S "$home/agent/agent.sock" ] && break
    kill -0 "$agent" 2> /dev/null || fail "the agent has ended: $(cat "$scratch/agent.log")"
    sleep 0.1
done
# podman wants control groups of version 2.
umount --lazy /sys/fs/cgroup 2> /dev/null || true
mount -t cgroup2 none /sys/fs/cgroup

mkdir -p "$home/image/bin" "$home/image/lib" "$home/image/proc"
cp "$scratch/outsider-peer" "$home/image/bin/outsider"
for file in $(ldd "$scratch/outsider-peer" | grep -o '/[^ ]*') /lib/*-linux-gnu/libpthread.so.0 /lib/*-linux-gnu/libdl.so.2; do
    cp --dereference "$file" "$home/image/lib"
done
ln --symbolic lib "$home/image/lib64"
mkdir "$home/root"
printf '[storage]\ndriver = "vfs"\nrunroot = "%s/root/run"\ngraphroot = "%s/root/graph"\n' "$home" "$home" > "$home/storage.root"
mkdir -p "$home/.config/containers"
printf '[storage]\ndriver = "vfs"\n' > "$home/.config/containers/storage.conf"
chown -R "$uid:$uid" "$home/.config" "$home/image" "/run/user/$uid"
chown "$uid:$uid" "$home"
export CONTAINERS_STORAGE_CONF="$home/storage.root"
as_user() {
    setpriv --reuid "$uid" --regid "$uid" --clear-groups \
        env --unset CONTAINERS_STORAGE_CONF HOME="$home" XDG_RUNTIME_DIR="/run/user/$uid" "$@"
}
as_root() { "$@"; }
cd /
for whose in as_user as_root; do
    tar --create --directory "$home/image" . | "$whose" podman import --quiet - localhost/outsider > /dev/null
done
mkfifo "$home/hold"

# run WHOSE NAME OPTIONS… -- ARGUMENTS of the program
run() {
    whose=$1
    shift
    "$whose" podman run --interactive --cgroups=disabled --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 "$@"
}

talks=0
# talk ENDS SERVER-OF SERVER-OPTIONS CLIENT-OF CLIENT-OPTIONS LISTEN CALL: a connection of which so many ends are in shared memory.
talk() {
    ends=$1 server_of=$2 server_options=$3 client_of=$4 client_options=$5 listen=$6 call=$7
    rm -f "$scratch/client.log"
    # shellcheck disable=SC2086
    run "$server_of" --detach --name server $server_options localhost/outsider /bin/outsider calls server "$listen" > "$scratch/server.log" 2>&1 ||
        fail "$*: the server: $(cat "$scratch/server.log")"
    if [ "$call" = its-own ]; then
        call=$("$server_of" podman inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' server):${listen#*:}
    fi
    # shellcheck disable=SC2086
    run "$client_of" --name client $client_options localhost/outsider /bin/outsider calls client "$call" "$seed" \
        < "$home/hold" > "$scratch/client.log" 2>&1 &
    client=$!
    exec 9> "$home/hold"
    for _ in $(seq 600); do
        grep -q verified "$scratch/client.log" && break
        kill -0 "$client" 2> /dev/null ||
            fail "$*: the client has ended: $(cat "$scratch/client.log"; "$server_of" podman logs server 2>&1)"
        sleep 0.1
    done
    seen=$("$sidestep" ss)
    exec 9>&-
    wait "$client" || fail "$*: the client: $(cat "$scratch/client.log")"
    [ "$(echo "$seen" | grep -c '^SMC-D ' || true)" = "$ends" ] || fail "$*: not $ends ends in shared memory: $seen"
    "$client_of" podman rm --force --time 0 client > /dev/null
    "$server_of" podman rm --force --time 0 server > /dev/null
    talks=$((talks + 1))
}

device="--device sidestep.dev/smc"
# By a process of podman's that passes bytes on, for the user; by a translation of the kernel's, for root.
talk 0 as_user "$device=all --network=slirp4netns --publish 7001:7001" as_user "$device=all --network=host" 0.0.0.0:7001 127.0.0.1:7001
talk 2 as_root "$device=all --publish 7002:7002" as_user "$device=all --network=host" 0.0.0.0:7002 127.0.0.1:7002
# The user's own network is a process as well, and has no kernel's end.
talk 0 as_root "$device=all --publish 7003:7003" as_user "$device=all --network=slirp4netns" 0.0.0.0:7003 its-own
# Two of the user's in a network of podman's, and in that of the host.
as_user podman network create inner > /dev/null
talk 2 as_user "$device=all --network=inner" as_user "$device=all --network=inner" 0.0.0.0:7004 its-own
talk 0 as_user "$device=pod --network=host" as_user "$device=pod --network=host" 7005 127.0.0.1:7005
# What is root in its user namespace counts as root elsewhere, where no agent tells who it is.
configure '[policy]
share_with_users = ["root"]'
talk 2 as_user "$device=pod --network=host" as_user "$device=pod --network=host" 7006 127.0.0.1:7006
# Without a device: all containers of podman have it, those of users too.
"$sidestep" enable --container-runtime > /dev/null
talk 2 as_user --network=host as_user --network=host 7007 127.0.0.1:7007
"$sidestep" disable --container-runtime > /dev/null
talk 0 as_user --network=host as_user --network=host 7008 127.0.0.1:7008
echo "$talks pairs of containers, of a user and of root"
