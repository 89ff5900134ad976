#!/bin/sh
# Installs Sidestep from this directory, or removes what it has installed.
#
#   ./install.sh [--prefix DIRECTORY] [--uninstall]
#
# The default prefix is /usr/local. Units go to /etc/systemd/system, and the configuration to /etc/sidestep if there is none;
# both only where /etc may be written. Nothing is enabled or started.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
prefix=/usr/local
uninstall=
while [ $# -gt 0 ]; do
    case $1 in
        --prefix) prefix=${2:?"--prefix needs a directory"}; shift 2 ;;
        --uninstall) uninstall=1; shift ;;
        *) echo "install.sh: $1: unknown; see the lines at its head" >&2; exit 2 ;;
    esac
done
case $prefix in
    /*) ;;
    *) echo "install.sh: $prefix: the prefix must begin with /" >&2; exit 2 ;;
esac

# Paths below usr/ in the archive are paths below the prefix.
files=$(cd "$here/usr" && find . ! -type d ! -path './lib/systemd/*' | sed 's,^\./,,')
units=$(cd "$here/usr/lib/systemd/system" && ls)

if [ -n "$uninstall" ]; then
    # A container with a mount of what is gone would not start.
    "$prefix/bin/sidestep" disable --container-runtime > /dev/null || true
    for file in $files; do rm -f "$prefix/$file"; done
    rmdir "$prefix/lib/sidestep" "$prefix/share/doc/sidestep" \
        "$prefix/share/sidestep/prometheus" "$prefix/share/sidestep/grafana" "$prefix/share/sidestep" 2>/dev/null || true
    for unit in $units; do rm -f "/etc/systemd/system/$unit" 2>/dev/null || true; done
    echo "removed from $prefix; /etc/sidestep stays"
    exit 0
fi

for file in $files; do
    mkdir -p "$prefix/$(dirname "$file")"
    # Another file under the same name: programs that run keep the library that they have.
    cp -P --preserve=mode "$here/usr/$file" "$prefix/$file.new"
    mv -f "$prefix/$file.new" "$prefix/$file"
done
if [ -w /etc ] && [ -d /etc/systemd/system ]; then
    for unit in $units; do
        sed "s,/usr/bin/,$prefix/bin/,g" "$here/usr/lib/systemd/system/$unit" > "/etc/systemd/system/$unit"
    done
fi
if [ -w /etc ] && [ ! -e /etc/sidestep/sidestep.toml ]; then
    mkdir -p /etc/sidestep
    cp "$here/etc/sidestep/sidestep.toml" /etc/sidestep/
fi
echo "installed below $prefix; next: $prefix/bin/sidestep doctor"
