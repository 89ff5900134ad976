//! Packets sent on by XDP, native on veth and generic: the driver's own counter says that it was XDP. What veth lacks is said at the start; what is
//! taken from it in the midst of a connection breaks none.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Scene, VIP, await_true};
use crate::bench::launch::{self, Dialogue, Program, Transport};
use crate::e2e::stage::Stage;
use crate::enclosure::{CABLE, Namespace};
use crate::suite::HANG;

/// The end of the distributor's cable that is the switch's.
const OTHER_END: &str = "distr";

pub(crate) fn xdp(stage: &Stage<'_>) -> Result<String> {
    let mut scene = Scene::set(stage)?;
    let _targets: Vec<Dialogue> =
        (0..3).map(|target| scene.target(target)).collect::<Result<_>>()?;
    let _servers: Vec<Program> =
        (0..3).map(|target| scene.redis(target, Transport::Tcp)).collect::<Result<_>>()?;
    scene.use_path("xdp");
    scene.refused_without_napi()?;

    scene.other_end("gro", "on")?;
    let distributor = scene.distributor()?;
    scene.await_path("xdp")?;
    scene.benchmark(Transport::Tcp, VIP[0], &["-c", "5", "-n", "100", "-k", "0"])?;
    ensure!(scene.open_checksums()? > 0, "no checksum was left to traffic control");

    scene.other_end("tx", "off")?;
    let (open, sent, passed) = (scene.open_checksums()?, scene.sent_by_xdp()?, scene.packets()?);
    let shares = scene.shares()?;
    scene.drain()?;
    for vip in VIP {
        scene.large_talk(vip)?.finish(HANG).with_context(|| vip.to_owned())?;
    }
    let sent = scene.sent_by_xdp()? - sent;
    let passed = scene.packets()? - passed;
    // One in 65 536 whole checksums looks like an open one.
    let open = scene.open_checksums()? - open;
    ensure!(sent + open == passed, "{passed} packets sent on, {sent} of them by XDP");
    ensure!(open <= 5, "{open} packets had open checksums");

    scene.napi_comes_and_goes()?;
    drop(distributor);
    scene.generic()?;
    Ok(format!("{shares}; {sent} packets by XDP"))
}

impl Scene<'_> {
    fn use_path(&mut self, path: &str) {
        let begin = "[distributor]\n";
        self.config = super::CONFIG.replace(begin, &format!("{begin}path = \"{path}\"\n"));
    }

    fn refused_without_napi(&self) -> Result<()> {
        let mut command = Command::new(&self.sidestep);
        command.args(["distributor", "run", "--config"]).arg(self.config()?);
        let refused = launch::run(self.enclosed(&self.distributor, command), HANG);
        let refused = refused.err().map(|error| format!("{error:#}")).unwrap_or_default();
        ensure!(refused.contains("gro on"), "it is not said what veth lacks: {refused}");
        Ok(())
    }

    fn interface(&self, namespace: &Namespace, words: &[&str]) -> Result<String> {
        let mut command = Command::new("python3");
        command.arg(self.stage.house.script("interface.py")).args(words);
        namespace.enclose(&mut command);
        launch::run(command, HANG)
    }

    fn other_end(&self, what: &str, state: &str) -> Result<()> {
        self.interface(&self.switch, &[OTHER_END, what, state]).map(drop)
    }

    /// By the driver's count.
    fn sent_by_xdp(&self) -> Result<u64> {
        let count = self.interface(&self.distributor, &[CABLE, "count", "_xdp_redirect"])?;
        Ok(count.trim().parse()?)
    }

    fn open_checksums(&self) -> Result<u64> {
        let of = |vip| Ok(self.vip_status(vip)?["link"]["open_checksums"].as_u64());
        let counts: Result<Option<Vec<u64>>> = ["four", "six"].into_iter().map(of).collect();
        Ok(counts?.context("a count")?.iter().sum())
    }

    fn await_path(&self, path: &str) -> Result<()> {
        await_true(&format!("packets go by {path}"), || {
            Ok(self.vip_status("four")?["link"]["path"] == path)
        })
    }

    /// Without NAPI at the other end traffic control goes on, in the midst of connections, until it is there again.
    fn napi_comes_and_goes(&self) -> Result<()> {
        let talks = [self.large_talk(VIP[0])?, self.large_talk(VIP[1])?];
        self.other_end("gro", "off")?;
        self.await_path("tc")?;
        for talk in talks {
            talk.finish(HANG).context("a connection whose XDP was taken away")?;
        }
        let talk = self.large_talk(VIP[0])?;
        self.other_end("gro", "on")?;
        self.await_path("xdp")?;
        talk.finish(HANG).context("a connection that XDP takes up").map(drop)
    }

    /// The generic mode needs nothing of the other end, and leaves no checksum to traffic control.
    fn generic(&mut self) -> Result<()> {
        self.use_path("xdp-generic");
        for what in [["gro", "off"], ["tx", "on"]] {
            self.other_end(what[0], what[1])?;
        }
        let _distributor = self.distributor()?;
        self.await_path("xdp-generic")?;
        for vip in VIP {
            self.large_talk(vip)?.finish(HANG).with_context(|| vip.to_owned())?;
        }
        ensure!(self.open_checksums()? == 0, "a checksum was left to traffic control");
        Ok(())
    }
}
