//! `sidestep support`: what is in the bundle, and the secrets that are not.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{Place, outcome};
use crate::talk::{Running, Talk, connect, free_port};

/// Unpacks it and returns each file with its contents.
fn unpacked(place: &Place, bundle: &Path) -> Vec<(String, Vec<u8>)> {
    let directory = place.path().join("unpacked");
    std::fs::create_dir(&directory).unwrap();
    let tar = Command::new("tar").arg("-xzf").arg(bundle).arg("-C").arg(&directory).status();
    assert!(tar.unwrap().success());
    let [root] = std::fs::read_dir(&directory)
        .unwrap()
        .map(|it| it.unwrap().path())
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    let file = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    };
    std::fs::read_dir(root).unwrap().map(file).collect()
}

fn has(haystack: &[u8], needle: &str) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle.as_bytes())
}

#[test]
fn a_bundle_has_what_it_says_and_no_secret() {
    let Some(talk) = Talk::prepare() else { return };
    let port = free_port();
    // In the environment of programs, in a key, in comments and addresses of the configuration, in what a
    // mistake quotes, and among the bytes of a connection.
    let key = talk.place.file("web.key", "PLANTED-private-key");
    let config = talk.place.file(
        "config.toml",
        &format!(
            "# PLANTED-comment\n[smc]\nspin = \"PLANTED-quoted\"\n\
             [distributor]\nstore = [\"http://root:PLANTED-password@127.0.0.1:2379\"]\n\
             [tls.inbound.web]\nports = [443]\ncertificate = \"{0}\"\nkey = \"{0}\"\n",
            key.display()
        ),
    );
    let mut server = talk.moved(&[], &["serve", &port]);
    server.env("PASSWORD", "PLANTED-environment");
    let server = Running::start(server);
    let mut stream = connect(&port);
    std::io::Write::write_all(&mut stream, b"PLANTED-payload").unwrap();

    let bundle = talk.place.path().join("bundle.tar.gz");
    let mut support = talk.sidestep();
    support.env("API_TOKEN", "PLANTED-own-environment").arg("support");
    support.arg("--config").arg(&config).arg("--output").arg(&bundle);
    let (status, said, errors) = outcome(&mut support);
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    let mode = std::fs::metadata(&bundle).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let files = unpacked(&talk.place, &bundle);
    for (name, contents) in &files {
        assert!(said.contains(name.as_str()), "{name} is not told: {said}");
        let text = String::from_utf8_lossy(contents);
        assert!(!has(contents, "PLANTED"), "{name}: {text}");
        // No gateway has links, and the programs at another's port may have ended.
        let may_complain = ["links", "devices", "why"].iter().any(|it| name.starts_with(it));
        if name.ends_with(".json") && !may_complain {
            serde_json::from_slice::<Value>(contents).unwrap_or_else(|_| panic!("{name}: {text}"));
        }
    }
    let file = |name: &str| {
        let found = files.iter().find(|(it, _)| it == name);
        String::from_utf8_lossy(&found.unwrap_or_else(|| panic!("no {name}")).1).into_owned()
    };
    assert_eq!(said.lines().filter(|line| !line.is_empty()).count(), files.len() + 1);
    assert!(file("stats.json").contains(&server.pid().to_string()));
    assert!(file("connections.json").contains(&format!("127.0.0.1:{port}")));
    assert!(file("config.json").contains("smc.rmbe_size"));
    assert!(file("version.txt").starts_with("sidestep "));
    assert!(file("system.txt").contains("Linux version"));
    assert!(file("CONTENTS.txt").contains("doctor.json"));
}

#[test]
fn what_is_there_is_not_overwritten() {
    let place = Place::new();
    let path = place.file("bundle.tar.gz", "precious");
    let mut support = place.sidestep(None);
    let (status, _, errors) = outcome(support.args(["support", "--output"]).arg(&path));
    assert_eq!(status, Some(1));
    assert!(errors.contains("File exists") && errors.contains("name another place"), "{errors}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    let (status, list, _) = outcome(place.sidestep(None).args(["support", "--list"]));
    assert_eq!(status, Some(0));
    assert!(list.starts_with("CONTENTS.txt") && list.contains("doctor.json"), "{list}");
}
