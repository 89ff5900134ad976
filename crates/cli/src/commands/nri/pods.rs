//! Which pods ask for Sidestep, and what their containers are given.

use std::path::Path;

use super::messages::{
    ContainerAdjustment, CreateContainerRequest, CreateContainerResponse, KeyValue, Mount,
};
use crate::commands::container_edits::{ContainerEdits, MOUNT_OPTIONS, Reach};
use crate::library::PRELOAD_VARIABLE;
use crate::options::OPTIONS_VARIABLE;
use crate::output::Escaped;

/// By which a pod asks, with the name of a [`Reach`].
pub(super) const ANNOTATION: &str = "sidestep.dev/smc";

/// What becomes of a container that is about to be created.
pub(super) fn response(
    edits: &ContainerEdits,
    request: &CreateContainerRequest,
) -> CreateContainerResponse {
    let adjust = asked(request).map(|reach| adjustment(edits, reach, request));
    CreateContainerResponse { adjust }
}

fn asked(request: &CreateContainerRequest) -> Option<Reach> {
    let wish = request.pod.as_ref()?.annotations.get(ANNOTATION)?;
    let reach = Reach::named(wish);
    if reach.is_none() {
        log::warn!(
            "{} stays on TCP: its annotation {ANNOTATION} is `{}`, and neither `all` nor `pod`",
            name(request),
            Escaped(wish)
        );
    }
    reach
}

fn adjustment(
    edits: &ContainerEdits,
    wish: Reach,
    request: &CreateContainerRequest,
) -> ContainerAdjustment {
    let reach = attainable(wish, edits.agent(), request);
    log::info!("{} runs under Sidestep: {}", name(request), reach.name());
    let own = |variable: &str| -> Option<&str> {
        let env = request.container.iter().flat_map(|it| &it.env);
        env.filter_map(|it| it.split_once('=')).find(|it| it.0 == variable).map(|it| it.1)
    };
    let variables = edits.variables(own(PRELOAD_VARIABLE)).into_iter();
    // Options that the container brings are its own affair.
    let ours = variables.filter(|(name, _)| *name != OPTIONS_VARIABLE || own(name).is_none());
    let env = ours.map(|(name, value)| KeyValue { key: name.to_owned(), value }).collect();
    let mounts = edits.mounts(reach).into_iter().map(|it| Mount {
        destination: it.of_container.display().to_string(),
        r#type: "bind".to_owned(),
        source: it.of_host.display().to_string(),
        options: MOUNT_OPTIONS.map(str::to_owned).to_vec(),
    });
    ContainerAdjustment { mounts: mounts.collect(), env }
}

/// A runtime creates no container that is to have a directory which is not there.
fn attainable(wish: Reach, agent: &Path, request: &CreateContainerRequest) -> Reach {
    if wish == Reach::All && !agent.is_dir() {
        log::warn!(
            "{} meets programs of its own pod only: no agent has made {}",
            name(request),
            agent.display()
        );
        return Reach::Pod;
    }
    wish
}

/// Of a container, for the log.
fn name(request: &CreateContainerRequest) -> String {
    let pod = request.pod.as_ref().map(|it| format!("{}/{}", it.namespace, it.name));
    let container = request.container.as_ref().map(|it| it.name.as_str());
    let name = format!("{}/{}", pod.unwrap_or_default(), container.unwrap_or_default());
    Escaped(name).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::nri::messages::{Container, PodSandbox};

    fn request(wish: Option<&str>, env: &[&str]) -> CreateContainerRequest {
        let annotations = wish.map(|wish| (ANNOTATION.to_owned(), wish.to_owned()));
        let pod = PodSandbox {
            name: "cache-0".to_owned(),
            namespace: "shop".to_owned(),
            annotations: annotations.into_iter().collect(),
        };
        let env = env.iter().map(|&it| it.to_owned()).collect();
        let container = Container { name: "redis".to_owned(), env };
        CreateContainerRequest { pod: Some(pod), container: Some(container) }
    }

    fn given(agent: &Path, request: &CreateContainerRequest) -> Option<(Vec<String>, Vec<String>)> {
        let edits = ContainerEdits::by_default("/l/libsidestep.so", agent);
        let adjust = response(&edits, request).adjust?;
        let mounts = adjust.mounts.iter().map(|it| format!("{} at {}", it.source, it.destination));
        let env = adjust.env.iter().map(|it| it.key.clone());
        Some((mounts.collect(), env.collect()))
    }

    #[test]
    fn a_pod_that_asks_for_nothing_or_for_what_there_is_not_is_left_alone() {
        let agent = Path::new("/nowhere/agent.sock");
        assert_eq!(given(agent, &request(None, &[])), None);
        assert_eq!(given(agent, &request(Some("true"), &[])), None);
        assert_eq!(given(agent, &CreateContainerRequest::default()), None);
    }

    #[test]
    fn a_pod_is_given_the_library_and_with_all_the_agent() {
        let place = tempfile::tempdir().unwrap();
        let agent = place.path().join("agent.sock");
        let library = "/l at /usr/lib/sidestep".to_owned();
        let directory = format!("{0} at {0}", place.path().display());
        let variables = vec!["LD_PRELOAD".to_owned(), "SIDESTEP_OPTIONS".to_owned()];
        let [all, pod] = ["all", "pod"].map(|wish| given(&agent, &request(Some(wish), &[])));
        assert_eq!(all, Some((vec![library.clone(), directory], variables.clone())));
        assert_eq!(pod, Some((vec![library], variables)));
    }

    #[test]
    fn without_an_agent_a_pod_begins_all_the_same() {
        let agent = Path::new("/nowhere/agent.sock");
        let (mounts, _) = given(agent, &request(Some("all"), &[])).unwrap();
        assert_eq!(mounts, ["/l at /usr/lib/sidestep"]);
    }

    #[test]
    fn options_of_the_container_stay() {
        let agent = Path::new("/nowhere/agent.sock");
        let own = ["PATH=/bin", "SIDESTEP_OPTIONS=mode=tcp"];
        let (_, env) = given(agent, &request(Some("pod"), &own)).unwrap();
        assert_eq!(env, ["LD_PRELOAD"]);
    }
}
