//! `sidestep nri` as the plugin of containerd's own side of NRI (`tests/kubernetes/nri`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::said_by;
use crate::bench::launch::{self, Dialogue};
use crate::bench::place;
use crate::suite::{HANG, Lacking};

/// Between two looks for the socket.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Containers of pods that ask, that ask for something else, and that do not ask, and the library's copy.
pub(super) fn adjusts(repo: &Path, scratch: &Path) -> Result<String> {
    let (socket, library) = (scratch.join("nri/nri.sock"), scratch.join("library"));
    // One that an earlier run has left is not that of this runtime.
    let _ = fs::remove_file(&socket);
    let mut command = Command::new(build_runtime(repo, scratch)?);
    command.arg(&socket);
    let mut runtime = Runtime(Dialogue::start(command)?);
    runtime.await_synchronized()?;
    await_socket(&socket)?;
    let mut command = Command::new(place::target_dir(repo).join("release/sidestep"));
    command.arg("nri").arg("--socket").arg(&socket).arg("--copy-library").arg(&library);
    let mut plugin = Dialogue::start(command)?;
    runtime.await_synchronized()?;

    let asks = json!({ "sidestep.dev/smc": "pod" });
    must_have_all(&runtime.created(&asks, &["LD_PRELOAD=/lib/own.so"])?, &library)?;
    for annotations in [json!({}), json!({ "sidestep.dev/smc": "true" })] {
        let given = runtime.created(&annotations, &[])?;
        let is_nothing = given["mounts"].is_null() && given["env"].is_null();
        ensure!(is_nothing, "a pod with {annotations} is given {given}");
    }
    ensure!(fs::metadata(library.join("libsidestep.so"))?.len() > 0, "no library");
    launch::signal(plugin.program().pid(), libc::SIGTERM)?;
    plugin.finish(HANG)?;
    runtime.0.hang_up();
    runtime.0.finish(HANG)?;
    Ok("containerd's NRI adjusts containers of pods that ask, and of no others".to_owned())
}

/// `tests/kubernetes/nri`, while it runs.
struct Runtime(Dialogue);

impl Runtime {
    /// It has begun, or a plugin has come.
    fn await_synchronized(&mut self) -> Result<()> {
        self.0.await_line("synchronized", HANG).map(drop)
    }

    /// What becomes of a container with these variables, in a pod with these annotations.
    fn created(&mut self, annotations: &Value, env: &[&str]) -> Result<Value> {
        let pod = json!({ "name": "cache", "namespace": "shop", "annotations": annotations });
        let container = json!({ "id": "1", "name": "redis", "env": env, "args": ["redis-server"] });
        self.0.say(&json!({ "pod": pod, "container": container }).to_string())?;
        let line = self.0.await_line("adjusted ", HANG)?;
        Ok(serde_json::from_str(line.trim_start_matches("adjusted "))?)
    }
}

/// **Errors**: the library is not where it belongs, or does not come before what the container preloads by itself.
fn must_have_all(given: &Value, library: &Path) -> Result<()> {
    let mount = json!([{
        "destination": "/usr/lib/sidestep", "type": "bind", "source": library,
        "options": ["bind", "ro", "nosuid", "nodev"],
    }]);
    ensure!(given["mounts"] == mount, "mounts: {}", given["mounts"]);
    let value = |name: &str| {
        let env = given["env"].as_array().context("no variables")?;
        let found = env.iter().find(|it| it["key"] == name).and_then(|it| it["value"].as_str());
        found.with_context(|| format!("no {name}: {env:?}"))
    };
    ensure!(value("LD_PRELOAD")? == "/usr/lib/sidestep/libsidestep.so:/lib/own.so");
    ensure!(value("SIDESTEP_OPTIONS")?.contains("filters=trust"));
    Ok(())
}

fn await_socket(socket: &Path) -> Result<()> {
    let deadline = Instant::now() + HANG;
    while !socket.exists() {
        ensure!(Instant::now() < deadline, "{} does not come", socket.display());
        thread::sleep(LOOK_INTERVAL);
    }
    Ok(())
}

/// The runtime's side, compiled.
///
/// **Errors**: [`Lacking`], if its modules cannot be had from here.
fn build_runtime(repo: &Path, scratch: &Path) -> Result<PathBuf> {
    let (source, program) = (repo.join("tests/kubernetes/nri"), scratch.join("nri-runtime"));
    let go = |words: &[&str]| {
        let mut command = Command::new("go");
        command.args(words).current_dir(&source);
        command
    };
    said_by(&mut go(&["mod", "download"])).map_err(|error| Lacking(format!("{error:#}")))?;
    // Plugins in WebAssembly, for which it has a runtime of its own, are not what is tried.
    said_by(go(&["build", "-tags", "nri_no_wasm", "-o"]).arg(&program).arg("."))?;
    Ok(program)
}
