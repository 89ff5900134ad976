#!/bin/sh
# In a fresh Debian: installs a package of Sidestep, upgrades it while two programs talk through shared memory, and purges it
# while they still do; then installs and removes the archive. Ends with 1 and the reason if anything is not as it must be.
set -eu

cd /trial
fail() { echo "packaged.sh: $*" >&2; exit 1; }
counted() { cat counted 2>/dev/null || echo 0; }

# Waits until the client has had 500 more answers: the connection lives, whatever was done to the package.
await_answers() {
    target=$(($(counted) + 500))
    for _ in $(seq 600); do
        [ "$(counted)" -ge "$target" ] && return 0
        kill -0 "$client" 2>/dev/null || fail "the client has ended $1: $(cat client.log)"
        sleep 0.1
    done
    fail "no answer for a minute $1"
}

# Both ends of the connection, as `sidestep ss` has them.
ends_by_smc() { sidestep ss | grep -c '^SMC-D ' || true; }

ip link set lo up
find / -xdev -name '*sidestep*' ! -path '/trial/*' ! -path '/proc/*' > before

dpkg --install first.deb
sidestep --version
man --warnings -E UTF-8 -l /usr/share/man/man1/sidestep-run.1.gz > /dev/null 2> man.log
[ ! -s man.log ] || fail "man: $(cat man.log)"
man -w sidestepd > /dev/null || fail "there is no page for sidestepd"
bash -c '. /usr/share/bash-completion/completions/sidestep; complete -p sidestep' > /dev/null || fail "bash does not complete"
sidestep config check > /dev/null || fail "the configuration that is installed has a mistake"
for unit in /usr/lib/systemd/system/sidestep*.service; do
    [ "$(systemctl --root=/ is-enabled "$(basename "$unit")" || true)" = disabled ] || fail "$unit is enabled"
done
systemd-analyze verify /usr/lib/systemd/system/sidestep*.service 2> verify.log || fail "units: $(cat verify.log)"

# A container has a filter of system calls, and `sidestep doctor` says that this key is needed then.
sidestep doctor | grep -q trust_filters || fail "no filter here, or doctor does not see it"
printf '[policy]\ntrust_filters = true\n' >> /etc/sidestep/sidestep.toml

sidestep run python3 packaged.py serve 7001 > server.log 2>&1 &
server=$!
sidestep run python3 packaged.py talk 7001 counted stop > client.log 2>&1 &
client=$!
await_answers "after it was started"
[ "$(ends_by_smc)" = 2 ] || fail "the connection is not in shared memory: $(sidestep ss)"

dpkg --install next.deb
await_answers "after the upgrade"
[ "$(ends_by_smc)" = 2 ] || fail "the new version does not see the connection: $(sidestep ss)"
grep -q '^trust_filters = true' /etc/sidestep/sidestep.toml || fail "the configuration was not kept"

dpkg --remove sidestep
await_answers "after the package was removed"
[ -e /etc/sidestep/sidestep.toml ] || fail "removing has taken the configuration"
dpkg --purge sidestep
await_answers "after the purge"

touch stop
wait "$client" || fail "the client: $(cat client.log)"
wait "$server" || fail "the server: $(cat server.log)"
find / -xdev -name '*sidestep*' ! -path '/trial/*' ! -path '/proc/*' > after
cmp -s before after || fail "left behind: $(diff before after)"

mkdir archive
tar --extract --directory archive --strip-components 1 --file sidestep.tar.gz
archive/install.sh --prefix /opt/sidestep
/opt/sidestep/bin/sidestep run true || fail "the program of the archive does not run another one"
/opt/sidestep/bin/sidestep doctor | grep -q '/opt/sidestep/lib/sidestep/libsidestep.so loads' || fail "not its own library"
grep -q '^ExecStart=/opt/sidestep/bin/sidestep gateway' /etc/systemd/system/sidestep-gateway.service || fail "another program in the unit"
archive/install.sh --prefix relative 2> /dev/null && fail "a relative prefix was taken"
archive/install.sh --prefix /opt/sidestep --uninstall
left=$(find /opt -xdev -name '*sidestep*' ! -type d; ls /etc/systemd/system | grep sidestep || true)
[ -z "$left" ] || fail "the archive has left behind: $left"
