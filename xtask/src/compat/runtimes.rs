//! Languages that bring their own way of doing I/O: a server and a client in
//! each.

use anyhow::Result;

use super::site::Site;
use crate::bench::launch;

pub(crate) fn java_http(site: &Site<'_>) -> Result<String> {
    echo(site, &["java", &site.script("compat/Http.java")])
}

pub(crate) fn java_nio(site: &Site<'_>) -> Result<String> {
    echo(site, &["java", &site.script("e2e/Echo.java")])
}

pub(crate) fn node_cluster(site: &Site<'_>) -> Result<String> {
    echo(site, &["env", "NODE_CLUSTER_SCHED_POLICY=rr", "node", &site.script("compat/cluster.js")])
}

pub(crate) fn node_cluster_shared(site: &Site<'_>) -> Result<String> {
    echo(
        site,
        &["env", "NODE_CLUSTER_SCHED_POLICY=none", "node", &site.script("compat/cluster.js")],
    )
}

pub(crate) fn python_asyncio(site: &Site<'_>) -> Result<String> {
    echo(site, &["python3", &site.script("e2e/echo_asyncio.py")])
}

/// `PROGRAM server PORT`, then `PROGRAM client PORT SEED`, which compares.
fn echo(site: &Site<'_>, program: &[&str]) -> Result<String> {
    let port = launch::free_port()?;
    let (text, seed) = (port.to_string(), site.seed());
    let mut server = site.serve(port, &[program, &["server", &text]].concat())?;
    let said = site.run(&[program, &["client", &text, &seed]].concat())?;
    server.must_be_alive()?;
    Ok(said.trim().to_owned())
}

/// Node's http and net have a port each.
pub(crate) fn node(site: &Site<'_>) -> Result<String> {
    let (port, http) = (launch::free_port()?, launch::free_port()?.to_string());
    let (script, text) = (site.script("e2e/echo.js"), port.to_string());
    let mut server = site.serve(port, &["node", &script, "server", &text, &http])?;
    let said = site.run(&["node", &script, "client", &text, &http, &site.seed()])?;
    server.must_be_alive()?;
    Ok(said.trim().to_owned())
}
