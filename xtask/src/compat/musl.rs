//! The same programs as Alpine has them: built with musl, from the sources that Debian has of them.
//!
//! They come before Debian's own on `PATH`, so a program that is tried is one of musl, and what Debian alone has beside it (`wrk`,
//! the Python of a script) is one of glibc. What a program can do without, such as TLS, is left out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::programs::Entry;
use crate::bench::launch;
use crate::debian;
use crate::suite::HANG;
use crate::suites;

/// The programs that are tried: those that need nothing else of musl.
const TRIED: [&str; 11] = [
    "memcached",
    "redis",
    "nginx",
    "nginx-workers",
    "nginx-reuseport",
    "haproxy-tcp",
    "haproxy-http",
    "haproxy-reload",
    "mosquitto",
    "socat",
    "bash",
];

/// Where a program or library comes from, and how it is built.
struct Recipe {
    /// The source package, and a binary package of it, whose version is wanted.
    source: &'static str,
    package: &'static str,
    /// For a shell in the source: `CC` is the compiler, `configure` the source's own for musl, `PREFIX` a place for libraries.
    script: &'static str,
    /// What is left, below the source.
    programs: &'static [&'static str],
}

const RECIPES: [Recipe; 8] = [
    Recipe {
        source: "libevent",
        package: "libevent-2.1-7",
        script: "configure --prefix=\"$PREFIX\" --disable-shared --disable-openssl --disable-samples \
                 --disable-libevent-regress && make -j2 install",
        programs: &[],
    },
    Recipe {
        source: "memcached",
        package: "memcached",
        script: "configure --with-libevent=\"$PREFIX\" && make -j2 memcached",
        programs: &["memcached"],
    },
    Recipe {
        source: "redis",
        package: "redis-server",
        script: "make -j2 CC=\"$CC\" MALLOC=libc BUILD_TLS=no USE_SYSTEMD=no OPT=-O2",
        programs: &["src/redis-server", "src/redis-cli", "src/redis-benchmark"],
    },
    Recipe {
        source: "nginx",
        package: "nginx-light",
        script: "./configure --with-cc=\"$CC\" --with-threads --without-http_rewrite_module \
                 --without-http_gzip_module --prefix=/usr/share/nginx --conf-path=/etc/nginx/nginx.conf \
                 --error-log-path=/var/log/nginx/error.log && make -j2",
        programs: &["objs/nginx"],
    },
    Recipe {
        source: "haproxy",
        package: "haproxy",
        script: "make -j2 TARGET=linux-musl CC=\"$CC\" USE_CRYPT_H= USE_LIBCRYPT= USE_OPENSSL= USE_PCRE= USE_LUA=",
        programs: &["haproxy"],
    },
    Recipe {
        source: "mosquitto",
        package: "mosquitto",
        script: "for part in lib src client; do \
                 make -C $part CC=\"$CC\" WITH_TLS=no WITH_CJSON=no WITH_SYSTEMD=no WITH_STATIC_LIBRARIES=yes \
                 WITH_SHARED_LIBRARIES=no || exit 1; done",
        programs: &["src/mosquitto", "client/mosquitto_pub", "client/mosquitto_sub"],
    },
    Recipe {
        source: "socat",
        package: "socat",
        script: "configure --disable-openssl --disable-readline --disable-libwrap && make -j2 socat",
        programs: &["socat"],
    },
    Recipe {
        source: "curl",
        package: "curl",
        script: "configure --disable-shared --without-ssl --without-zlib --disable-ldap --without-libpsl \
                 --without-nghttp2 --without-brotli --without-zstd --without-libidn2 --disable-manual && make -j2",
        programs: &["src/curl"],
    },
];

/// bash takes long to build, and only one program that is tried needs it.
const BASH: Recipe = Recipe {
    source: "bash",
    package: "bash",
    script: "configure --without-bash-malloc --disable-nls && make -j2",
    programs: &["bash"],
};

/// `configure` of a source, told that its programs are for musl.
const CONFIGURE: &str = "configure() { ./configure --host=x86_64-linux-musl \"$@\"; }; ";

/// The kernel's headers, which Debian has beside glibc's, and those of glibc must not be found there.
const HEADERS: [(&str, &str); 4] = [
    ("linux", "/usr/include/linux"),
    ("asm-generic", "/usr/include/asm-generic"),
    ("asm", "/usr/include/x86_64-linux-gnu/asm"),
    ("mtd", "/usr/include/mtd"),
];
/// Debian builds musl without it, and programs include it unasked.
const CRYPT: &str = "/* This musl has no crypt(). */\n#define crypt(key, setting) ((char *)0)\n";
/// What a program asks for that musl's loader begins.
const LOADER: &[u8] = b"/lib/ld-musl-";

pub(super) fn is_tried(entry: &Entry) -> bool {
    TRIED.contains(&entry.name)
}

/// The directory with the programs, each built once: they stay below the target directory.
///
/// **Errors**: [`Lacking`](crate::suite::Lacking), if a source or the compiler cannot be had from here.
pub(super) fn built(target: &Path) -> Result<PathBuf> {
    debian::ensure(&["musl-tools", "dpkg-dev", "make"])?;
    let place = target.join("musl");
    let (bin, headers) = (place.join("bin"), place.join("headers"));
    fs::create_dir_all(&bin)?;
    fs::create_dir_all(&headers)?;
    for (name, at) in HEADERS {
        let link = headers.join(name);
        if fs::symlink_metadata(&link).is_err() {
            std::os::unix::fs::symlink(at, link)?;
        }
    }
    fs::write(headers.join("crypt.h"), CRYPT)?;
    for recipe in RECIPES.iter().chain([&BASH]) {
        if !recipe.done(&place).exists() {
            recipe.make(target, &place).with_context(|| format!("building {}", recipe.source))?;
        }
    }
    Ok(bin)
}

impl Recipe {
    /// There once it was built.
    fn done(&self, place: &Path) -> PathBuf {
        place.join(format!("{}.done", self.source))
    }

    fn make(&self, target: &Path, place: &Path) -> Result<()> {
        let source = suites::source_of(self.package, self.source, target)?;
        println!("building {} by musl-gcc ...", self.source);
        let tree = place.join(self.source);
        // Left by a run that was ended.
        let _ = fs::remove_dir_all(&tree);
        let mut copy = Command::new("cp");
        copy.arg("--archive").arg(source).arg(&tree);
        launch::run(copy, HANG)?;
        let mut make = Command::new("sh");
        make.args(["-c", &format!("{CONFIGURE}{}", self.script)]).current_dir(&tree);
        make.env("CC", format!("musl-gcc -idirafter {}", place.join("headers").display()));
        make.env("CFLAGS", "-O2").env("PREFIX", place.join("libraries"));
        launch::run(make, HANG)?;
        for program in self.programs {
            let (made, name) = (tree.join(program), Path::new(program).file_name());
            let bytes = fs::read(&made)?;
            let is_musls = bytes.windows(LOADER.len()).any(|it| it == LOADER);
            ensure!(is_musls, "{program} is no program of musl");
            fs::copy(made, place.join("bin").join(name.context("a program has a name")?))?;
        }
        fs::remove_dir_all(tree)?;
        Ok(fs::write(self.done(place), "")?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compat::programs::PROGRAMS;

    #[test]
    fn what_is_tried_is_there_and_has_a_program_of_musl() {
        for name in TRIED {
            let entry = PROGRAMS.iter().find(|entry| entry.name == name).unwrap();
            let of_musl = RECIPES.iter().chain([&BASH]).any(|it| it.package == entry.packages[0]);
            assert!(of_musl, "{name}");
        }
    }
}
