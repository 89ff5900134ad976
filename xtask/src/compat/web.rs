//! Web servers and proxies, driven by curl and wrk.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::site::Site;
use crate::bench::launch::{self, Program};
use crate::nginx;

/// Files to serve: from less than a packet to many times the largest ring.
const FILES: [(&str, usize); 4] =
    [("1k", 1_000), ("64k", 65_537), ("1m", 1_000_000), ("30m", 30_000_000)];

/// Files fetched by one curl in this order; the large ones have small ones behind
/// them.
const ORDER: [usize; 8] = [0, 2, 0, 1, 3, 0, 1, 2];

/// How long a load lasts.
const LOAD_S: &str = "2s";

// ---- nginx -------------------------------------------------------------------

pub(crate) fn nginx_one_worker(site: &Site<'_>) -> Result<String> {
    let (port, mut server) = serve_files(site, 1, "")?;
    fetch(site, port, &[])?;
    fetch(site, port, &["-Z"])?;
    server.must_be_alive()?;
    Ok(format!("{} files compared, with keep-alive and in parallel", 2 * ORDER.len()))
}

pub(crate) fn nginx_workers(site: &Site<'_>) -> Result<String> {
    nginx_under_load(site, "")
}

pub(crate) fn nginx_reuseport(site: &Site<'_>) -> Result<String> {
    nginx_under_load(site, "reuseport")
}

fn nginx_under_load(site: &Site<'_>, listen: &str) -> Result<String> {
    let (port, mut server) = serve_files(site, 4, listen)?;
    fetch(site, port, &["-Z"])?;
    let kept = load(site, port, "64k", &[])?;
    let closed = load(site, port, "1k", &["-H", "Connection: close"])?;
    fetch(site, port, &["-H", "Connection: close"])?;
    server.must_be_alive()?;
    Ok(format!(
        "{} files compared, {kept} with keep-alive, {closed} with a connection each",
        2 * ORDER.len()
    ))
}

fn write_files(site: &Site<'_>) -> Result<()> {
    FILES.iter().try_for_each(|(name, len)| {
        site.write_random(&format!("www/{name}"), *len)?;
        Ok(())
    })
}

/// Our files from any server of the folder `www`.
fn serve_files_by(site: &Site<'_>, port: u16, words: &[&str]) -> Result<String> {
    write_files(site)?;
    let mut server = site.serve(port, words)?;
    fetch(site, port, &[])?;
    fetch(site, port, &["-Z"])?;
    server.must_be_alive()?;
    Ok(format!("{} files compared", 2 * ORDER.len()))
}

/// An nginx with some workers and our files.
fn serve_files(site: &Site<'_>, workers: u32, listen: &str) -> Result<(u16, Program)> {
    write_files(site)?;
    let port = launch::free_port()?;
    // In there nginx makes its folders.
    site.write("temporary/.keep", "")?;
    let (user, temporary) = nginx::settings(Path::new(&site.path("temporary")))?;
    // Its home has the rules of the whole site.
    let rules = site.write(".config/sidestep/sidestep.toml", "")?;
    nginx::sharing(Path::new(&rules))?;
    let (www, pid_file) = (site.path("www"), site.path("nginx.pid"));
    let config = format!(
        "daemon off; worker_processes {workers}; pid {pid_file}; {user}\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n\
         access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;\n\
         {temporary}\
         server {{ listen 127.0.0.1:{port} {listen}; root {www}; }}\n\
         }}\n"
    );
    let config = site.write("nginx.conf", config)?;
    Ok((port, site.serve(port, &["nginx", "-e", "stderr", "-c", &config])?))
}

/// Fetches all files with one curl and compares them.
fn fetch(site: &Site<'_>, port: u16, flags: &[&str]) -> Result<()> {
    let mut words: Vec<String> =
        ["curl", "-sS", "--fail"].iter().chain(flags).map(ToString::to_string).collect();
    for (nth, file) in ORDER.iter().enumerate() {
        let url = format!("http://127.0.0.1:{port}/{}", FILES[*file].0);
        words.extend(["-o".to_owned(), site.path(&format!("fetched-{nth}")), url]);
    }
    site.run(&words)?;
    for (nth, file) in ORDER.iter().enumerate() {
        site.must_be_equal(&format!("fetched-{nth}"), &format!("www/{}", FILES[*file].0))?;
    }
    Ok(())
}

/// Asks for one file again and again, by 50 connections at a time, and lets wrk
/// count what was not a good answer.
fn load(site: &Site<'_>, port: u16, file: &str, flags: &[&str]) -> Result<String> {
    let url = format!("http://127.0.0.1:{port}/{file}");
    let words = [&["wrk", "-t", "2", "-c", "50", "-d", LOAD_S], flags, &[&url]].concat();
    let report = site.run(&words)?;
    let errors: Vec<&str> =
        report.lines().filter(|it| it.contains("Non-2xx") || it.contains("errors")).collect();
    ensure!(errors.is_empty(), "wrk reports {errors:?}");
    let sum = report.lines().find_map(|line| line.trim().split_once(" requests in "));
    let requests: u64 = sum.and_then(|(count, _)| count.parse().ok()).context("wrk's report")?;
    ensure!(requests > 0, "wrk made no request: {report}");
    Ok(format!("{requests} requests"))
}

// ---- HAProxy -----------------------------------------------------------------

pub(crate) fn haproxy_tcp(site: &Site<'_>) -> Result<String> {
    haproxy_under_load(site, "tcp")
}

pub(crate) fn haproxy_http(site: &Site<'_>) -> Result<String> {
    haproxy_under_load(site, "http")
}

fn haproxy_under_load(site: &Site<'_>, mode: &str) -> Result<String> {
    let (backend, mut nginx) = serve_files(site, 2, "")?;
    let port = launch::free_port()?;
    let config = proxy_config(site, mode, port, backend)?;
    let mut haproxy = site.serve(port, &["haproxy", "-db", "-f", &config])?;
    fetch(site, port, &[])?;
    fetch(site, port, &["-Z"])?;
    let load = load(site, port, "1k", &[])?;
    haproxy.must_be_alive()?;
    nginx.must_be_alive()?;
    Ok(format!("{} files compared, {load} with keep-alive", 2 * ORDER.len()))
}

fn proxy_config(site: &Site<'_>, mode: &str, port: u16, backend: u16) -> Result<String> {
    let socket = site.path("haproxy.sock");
    site.write(
        "haproxy.cfg",
        format!(
            "global\n nbthread 2\n maxconn 1000\n\
             \x20stats socket {socket} mode 600 level admin expose-fd listeners\n\
             defaults\n mode {mode}\n timeout connect 10s\n timeout client 60s\n\
             \x20timeout server 60s\n\
             frontend front\n bind 127.0.0.1:{port}\n default_backend back\n\
             backend back\n server nginx 127.0.0.1:{backend}\n"
        ),
    )
}

/// At this rate there is time to stop the client in the middle of the file.
const SLOW_RATE: &str = "10M";

/// How often all files are fetched through the new process while the old one is
/// still there.
const FETCHES_MEANWHILE: usize = 3;

pub(crate) fn haproxy_reload(site: &Site<'_>) -> Result<String> {
    let (backend, mut nginx) = serve_files(site, 1, "")?;
    let port = launch::free_port()?;
    let config = proxy_config(site, "tcp", port, backend)?;
    let mut old = site.serve(port, &["haproxy", "-db", "-f", &config])?;
    fetch(site, port, &[])?;

    let (url, to) = (format!("http://127.0.0.1:{port}/30m"), site.path("slow"));
    let slow = ["curl", "-sS", "--fail", "--limit-rate", SLOW_RATE, "-o", &to, &url];
    let mut slow = site.start(&slow)?;
    site.await_that("the slow file comes", || Ok(Path::new(&to).exists()))?;
    // Until it goes on, the old process has a connection left.
    launch::signal(slow.program().pid(), libc::SIGSTOP)?;
    let (socket, pid) = (site.path("haproxy.sock"), old.pid().to_string());
    let upgrade = ["haproxy", "-db", "-f", &config, "-x", &socket, "-sf", &pid];
    let mut new = site.start(&upgrade)?;
    for _ in 0..FETCHES_MEANWHILE {
        fetch(site, port, &[])?;
    }
    old.must_be_alive().context("the old process has a file to finish")?;
    launch::signal(slow.program().pid(), libc::SIGCONT)?;
    site.finish(slow)?;
    site.must_be_equal("slow", "www/30m")?;
    site.await_that("the old process ends", || old.has_ended())?;
    fetch(site, port, &[])?;
    new.program().must_be_alive()?;
    nginx.must_be_alive()?;
    let compared = (FETCHES_MEANWHILE + 2) * ORDER.len() + 1;
    Ok(format!("{compared} files compared before, during and after"))
}

// ---- other servers and clients -------------------------------------------------

pub(crate) fn wget(site: &Site<'_>) -> Result<String> {
    let (port, mut server) = serve_files(site, 1, "")?;
    let urls = FILES.map(|(name, _)| format!("http://127.0.0.1:{port}/{name}"));
    let mut words = vec!["wget", "-q", "-P", "got"];
    words.extend(urls.iter().map(String::as_str));
    site.run(&words)?;
    for (name, _) in FILES {
        site.must_be_equal(&format!("got/{name}"), &format!("www/{name}"))?;
    }
    server.must_be_alive()?;
    Ok(format!("{} files compared, with keep-alive", FILES.len()))
}

/// Python's own: it closes after each answer, so the large files move only.
pub(crate) fn python_http_server(site: &Site<'_>) -> Result<String> {
    let port = launch::free_port()?;
    let words = ["python3", "-m", "http.server", "--bind", "127.0.0.1", "-d", "www"];
    serve_files_by(site, port, &[&words[..], &[&port.to_string()]].concat())
}

pub(crate) fn gunicorn_sync(site: &Site<'_>) -> Result<String> {
    gunicorn(site, &["--worker-class", "sync"])
}

pub(crate) fn gunicorn_threads(site: &Site<'_>) -> Result<String> {
    gunicorn(site, &["--worker-class", "gthread", "--threads", "4", "--keep-alive", "5"])
}

/// An application that answers with what it was sent.
fn gunicorn(site: &Site<'_>, class: &[&str]) -> Result<String> {
    let port = launch::free_port()?;
    let (address, scripts) = (format!("127.0.0.1:{port}"), site.script("compat"));
    let words = ["gunicorn", "--workers", "4", "--bind", &address, "--chdir", &scripts];
    let app = ["--worker-tmp-dir", "/dev/shm", "--no-sendfile", "echo_wsgi:echo"];
    let mut server = site.serve(port, &[&words, class, &app].concat())?;
    let url = format!("http://{address}/");
    let mut post = vec!["curl".to_owned(), "-sS".to_owned(), "--fail".to_owned()];
    for (nth, (name, len)) in FILES.iter().enumerate() {
        let data = site.write_random(&format!("posted-{name}"), *len)?;
        if nth > 0 {
            post.push("--next".to_owned());
        }
        let to = site.path(&format!("echoed-{name}"));
        post.extend(["-sS", "--data-binary"].map(str::to_owned));
        post.extend([format!("@{data}"), "-o".to_owned(), to, url.clone()]);
    }
    site.run(&post)?;
    for (name, _) in FILES {
        site.must_be_equal(&format!("echoed-{name}"), &format!("posted-{name}"))?;
    }
    let load = load(site, port, "", &[])?;
    server.must_be_alive()?;
    Ok(format!("{} bodies echoed and compared, {load}", FILES.len()))
}

pub(crate) fn busybox(site: &Site<'_>) -> Result<String> {
    let port = launch::free_port()?;
    let address = format!("127.0.0.1:{port}");
    serve_files_by(site, port, &["busybox", "httpd", "-f", "-p", &address, "-h", "www"])
}

pub(crate) fn caddy(site: &Site<'_>) -> Result<String> {
    let port = launch::free_port()?;
    let address = format!("127.0.0.1:{port}");
    serve_files_by(site, port, &["caddy", "file-server", "--listen", &address, "--root", "www"])
}
