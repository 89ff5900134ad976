//! A web server under wrk, alone and behind a proxy.

use anyhow::{Context, Result, ensure};

use super::lab::{Lab, Load};
use super::launch::{self, Program, Transport};
use crate::nginx;
use crate::payload;

/// Length of the page.
const PAGE_LEN: usize = 1024;

/// Connections that are kept, to one worker.
pub(super) fn nginx(lab: &Lab, transport: Transport, connections: u32) -> Result<Load> {
    let (port, mut server) = serve_page(lab, transport)?;
    let load = wrk(lab, transport, port, connections, &[&server])?;
    server.must_be_alive()?;
    Ok(load)
}

/// A connection for each request.
pub(super) fn nginx_short(lab: &Lab, transport: Transport, connections: u32) -> Result<Load> {
    let (port, mut server) = serve_page(lab, transport)?;
    let close = ["-H", "Connection: close"];
    let load = wrk_with(lab, transport, port, connections, &close, &[&server])?;
    server.must_be_alive()?;
    Ok(load)
}

/// The same through HAProxy, which passes bytes on and does not look at them.
pub(super) fn haproxy(lab: &Lab, transport: Transport, connections: u32) -> Result<Load> {
    let (backend, mut server) = serve_page(lab, transport)?;
    let port = launch::free_port()?;
    let config = lab.write(
        "haproxy.cfg",
        format!(
            "global\n nbthread 1\n maxconn 1000\n\
             defaults\n mode tcp\n timeout connect 10s\n timeout client 60s\n\
             \x20timeout server 60s\n\
             listen page\n bind 127.0.0.1:{port}\n server nginx 127.0.0.1:{backend}\n"
        ),
    )?;
    let words = ["haproxy", "-db", "-f", &config];
    let mut proxy = lab.serve(port, lab.command(transport, &words)?)?;
    let load = wrk(lab, transport, port, connections, &[&server, &proxy])?;
    server.must_be_alive()?;
    proxy.must_be_alive()?;
    Ok(load)
}

fn serve_page(lab: &Lab, transport: Transport) -> Result<(u16, Program)> {
    lab.write("www/page", payload::random_bytes(PAGE_LEN)?)?;
    let port = launch::free_port()?;
    // In there nginx makes its folders.
    lab.write("nginx/.keep", "")?;
    let (user, temporary) = nginx::settings_of_one_user(&lab.scratch.join("nginx"))?;
    let (www, pid_file) = (lab.path("www"), lab.path("nginx/pid"));
    let config = format!(
        "daemon off; worker_processes 1; pid {pid_file}; {user}\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n\
         access_log off; sendfile on; keepalive_requests 100000000;\n\
         {temporary}\
         server {{ listen 127.0.0.1:{port}; root {www}; }}\n\
         }}\n"
    );
    let config = lab.write("nginx/nginx.conf", config)?;
    let words = ["nginx", "-e", "stderr", "-c", &config];
    Ok((port, lab.serve(port, lab.command(transport, &words)?)?))
}

fn wrk(
    lab: &Lab,
    transport: Transport,
    port: u16,
    connections: u32,
    servers: &[&Program],
) -> Result<Load> {
    wrk_with(lab, transport, port, connections, &[], servers)
}

fn wrk_with(
    lab: &Lab,
    transport: Transport,
    port: u16,
    connections: u32,
    options: &[&str],
    servers: &[&Program],
) -> Result<Load> {
    let (connections, url) = (connections.to_string(), format!("http://127.0.0.1:{port}/page"));
    let duration = format!("{}s", lab.whole_seconds());
    let words = ["wrk", "-t", "1", "-c", &connections, "-d", &duration];
    let words = [&words[..], options, &[&url]].concat();
    let counted = lab.run_counted(lab.command(transport, &words)?, servers)?;
    let errors = counted.said.lines().find(|it| it.contains("Non-2xx") || it.contains("errors"));
    ensure!(errors.is_none(), "wrk reports {errors:?}");
    let requests = wrk_requests(&counted.said).context("wrk's number of requests")?;
    let requests_per_s = wrk_rate(&counted.said).context("wrk's rate")?;
    Ok(Load { requests_per_s, cpu_us_per_request: counted.cpu_s * 1e6 / requests })
}

/// From `  258203 requests in 2.00s, 326.35MB read`.
fn wrk_requests(report: &str) -> Option<f64> {
    let (count, _) = report.lines().find_map(|line| line.split_once(" requests in "))?;
    count.trim().parse().ok()
}

/// From `Requests/sec: 129101.50`.
fn wrk_rate(report: &str) -> Option<f64> {
    report.lines().find_map(|line| line.strip_prefix("Requests/sec:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrk_s_report_is_read() {
        let report = "  258203 requests in 2.00s, 326.35MB read\nRequests/sec: 129101.50\n";
        assert_eq!(wrk_requests(report), Some(258_203.0));
        assert_eq!(wrk_rate(report), Some(129_101.5));
        assert_eq!(wrk_rate("nothing"), None);
    }
}
