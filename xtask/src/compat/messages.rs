//! Programs that carry messages: a log service and a broker.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use super::site::Site;
use crate::bench::launch;

// ---- rsyslog -----------------------------------------------------------------

const LOG_LINES: usize = 20_000;

/// `logger` to one service, which forwards to another, which writes a file.
pub(crate) fn rsyslog(site: &Site<'_>) -> Result<String> {
    let (near, far) = (launch::free_port()?, launch::free_port()?);
    let sent: String = (0..LOG_LINES).map(|n| format!("message {n} of many\n")).collect();
    let (sent, got) = (site.write("sent", sent)?, site.path("got"));
    let write = format!("action(type=\"omfile\" file=\"{got}\" template=\"words\")");
    let forward = format!(
        "action(type=\"omfwd\" target=\"127.0.0.1\" port=\"{far}\" protocol=\"tcp\" \
         tcp_framing=\"octet-counted\")"
    );
    let mut far = serve_log(site, "far", far, &write)?;
    let near_port = near.to_string();
    let mut near = serve_log(site, "near", near, &forward)?;
    let to = ["logger", "--tcp", "--octet-count", "-n", "127.0.0.1", "-P", &near_port];
    site.run(&[&to[..], &["-t", "compat", "-f", &sent]].concat())?;
    let sent_len = fs::metadata(&sent)?.len();
    site.await_that("all messages are written", || {
        Ok(fs::metadata(&got).is_ok_and(|it| it.len() >= sent_len))
    })?;
    site.must_be_equal("got", "sent")?;
    near.must_be_alive()?;
    far.must_be_alive()?;
    Ok(format!("{LOG_LINES} messages forwarded and compared"))
}

fn serve_log(site: &Site<'_>, name: &str, port: u16, action: &str) -> Result<launch::Program> {
    let work = site.path(name);
    fs::create_dir_all(Path::new(&work))?;
    let config = format!(
        "global(workDirectory=\"{work}\")\nmodule(load=\"imtcp\")\n\
         template(name=\"words\" type=\"string\" string=\"%msg:2:$%\\n\")\n\
         input(type=\"imtcp\" address=\"127.0.0.1\" port=\"{port}\")\n{action}\n"
    );
    let config = site.write(&format!("{name}.conf"), config)?;
    let pid_file = site.path(&format!("{name}.pid"));
    site.serve(port, &["rsyslogd", "-n", "-f", &config, "-i", &pid_file])
}

// ---- mosquitto ---------------------------------------------------------------

const MESSAGES: usize = 20_000;

const LARGE_MESSAGE_LEN: usize = 10_000_000;

/// A session that outlives its connections keeps what is published meanwhile.
///
/// Each session reads once: the messages whose acknowledgements the broker has
/// not read when a reader leaves are delivered again to the next reader of its
/// session (MQTT 3.1.1 §4.4), with plain TCP as with SMC.
pub(crate) fn mosquitto(site: &Site<'_>) -> Result<String> {
    let port = launch::free_port()?.to_string();
    let config = format!(
        "listener {port} 127.0.0.1\nallow_anonymous true\nuser root\n\
         max_queued_messages 0\nmax_inflight_messages 100\n"
    );
    let config = site.write("mosquitto.conf", config)?;
    let mut server = site.serve(port.parse()?, &["mosquitto", "-c", &config])?;
    let sent: String = (0..MESSAGES).map(|n| format!("message {n} of many\n")).collect();
    site.write("sent", sent)?;
    site.write_random("large", LARGE_MESSAGE_LEN)?;

    let address = format!("-h 127.0.0.1 -p {port} -q 1");
    let subscribe =
        |topic: &str| format!("mosquitto_sub {address} -c -i {topic}-reader -t {topic}");
    let publish = format!("mosquitto_pub {address}");
    let shell = |script: &str| site.run(&["bash", "-c", script]);
    for topic in ["many", "large"] {
        shell(&format!("{} -E", subscribe(topic)))?;
    }
    shell(&format!("{publish} -t many -l < sent"))?;
    shell(&format!("{} -C {MESSAGES} > got", subscribe("many")))?;
    site.must_be_equal("got", "sent")?;
    shell(&format!("{publish} -t large -f large"))?;
    shell(&format!("{} -N -C 1 > large-got", subscribe("large")))?;
    site.must_be_equal("large-got", "large")?;
    ensure!(!server.has_ended()?, "mosquitto has ended");
    Ok(format!("{MESSAGES} messages and one of {LARGE_MESSAGE_LEN} bytes compared"))
}
