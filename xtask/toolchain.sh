# Shared by ./demo and ./check, which source it from the root of the repository: makes `cargo`
# one that can build this workspace.
#
# Takes what is there if it is recent enough, else what Debian's packages have, and otherwise
# says what to do and ends the script.

# Of the whole workspace, such as 1.88.
needed=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)

# Where rustup puts it, whether or not this shell has been told.
PATH="$PATH:$HOME/.cargo/bin"

# at_least VERSION NEEDED
at_least() {
    [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

has_compiler() {
    printf '#include <stdio.h>\nint main(void) { return 0; }\n' |
        gcc -x c -o /dev/null - 2>/dev/null
}

rust_version() {
    cargo --version >/dev/null 2>&1 && rustc --version 2>/dev/null | cut -d ' ' -f 2
}

has_rust() {
    at_least "$(rust_version)" "$needed"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

install_packages() {
    echo "installing $*" >&2
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -y -o Dpkg::Use-Pty=0 install --no-install-recommends "$@" >/dev/null
}

# The version that apt would install; nothing when it has none.
candidate() {
    LC_ALL=C apt-cache policy "$1" | sed -n 's/^ *Candidate: \([0-9][^+~-]*\).*/\1/p'
}

# Debian 12 has a recent Rust as rustc-web, later releases as rustc or through rustup.
install_rust() {
    if at_least "$(candidate rustc-web)" "$needed"; then
        install_packages cargo-web rustc-web rustfmt-web
    elif at_least "$(candidate rustc)" "$needed"; then
        install_packages cargo rustc rustfmt rust-clippy
    elif [ -n "$(candidate rustup)" ]; then
        install_packages rustup ca-certificates && rustup default stable
    else
        false
    fi
}

if ! has_compiler || ! has_rust; then
    if command -v apt-get >/dev/null; then
        as_root apt-get -qq update || true
        has_compiler || install_packages gcc libc6-dev || true
        has_rust || install_rust || true
    fi
    # A name found before may lie elsewhere now.
    hash -r
fi

if ! has_compiler; then
    echo "$0: needs a C compiler; as root, run: apt-get install gcc libc6-dev" >&2
    exit 1
fi
if ! has_rust; then
    found=$(rust_version)
    cat >&2 <<EOF
$0: needs Rust $needed or newer; found: ${found:-none}.
Debian's packages here have none that is new enough. With rustup already installed, run

    rustup update stable && rustup default stable

and otherwise install it as https://rustup.rs says. Then run $0 again.
EOF
    exit 1
fi
