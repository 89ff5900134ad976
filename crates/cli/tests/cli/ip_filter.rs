//! `sidestep filter` from outside: lists in files, and packets of a control group in a network
//! namespace with a BPF file system of its own.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use sidestep_bpf::{Cgroup, Filter, GroupNumbers, RuleSet};
use sidestep_filter::{NoNames, RuleList, compile};

use crate::support::{Place, outcome};
use crate::talk::{HANG, eventually};

#[test]
fn what_is_odd_in_a_list_is_told() {
    let place = Place::new();
    let list = "permit tcp 10.0.0.0/8 any:80\n# twice\ndeny tcp 10.1.0.0/16 any:80\ndefault deny\n";
    let file = place.file("rules", list);
    let check = |arguments: &[&str]| {
        outcome(place.sidestep(None).args(["filter", "check"]).arg(&file).args(arguments))
    };
    let (status, text, errors) = check(&[]);
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    assert!(text.contains(": 2 rules, default deny; 65 KB in the kernel"), "{text}");
    let odd = "line 3: deny tcp 10.1.0.0/16 any:80\n  -> never matches: \
               it contradicts line 1: permit tcp 10.0.0.0/8 any:80\n";
    assert!(text.contains(odd), "{text}");
    let report: Value = serde_json::from_str(&check(&["--json"]).1).unwrap();
    assert_eq!(report["never_match"][0]["hidden_by_line"], 1);
    assert_eq!(report["rules"], 2);
}

#[test]
fn mistakes_have_a_line_and_a_column() {
    let place = Place::new();
    let file = place.file("rules", "permit tcp any any:x\n\ndeny tcp any\n");
    let (status, text, errors) = outcome(place.sidestep(None).args(["filter", "check"]).arg(&file));
    assert_eq!((status, text.as_str()), (Some(1), ""));
    let path = file.display();
    assert_eq!(
        errors,
        format!(
            "sidestep filter check: {path}:1:20: `x` is no port, nor a range such as 6000-6010 or \
             1024-\n\
             sidestep filter check: {path}:3:13: where packets go is missing: any, or an address\n"
        )
    );
    let file = place.file("rules", "deny any any any\ndeny any any any on nowhere0\n");
    let (status, _, errors) = outcome(place.sidestep(None).args(["filter", "check"]).arg(&file));
    assert_eq!(status, Some(1));
    assert!(errors.contains(":2: there is no interface nowhere0 here"), "{errors}");
    let (status, _, errors) = outcome(place.sidestep(None).args(["filter", "check"]));
    assert_eq!(status, Some(1));
    assert!(errors.contains("which list?"), "{errors}");
}

#[test]
fn a_list_can_stand_in_the_configuration() {
    let place = Place::new();
    let check = |configuration: &str| {
        let file = place.file("sidestep.toml", configuration);
        outcome(place.sidestep(None).args(["filter", "check", "--config"]).arg(file))
    };
    let rules = "permit tcp any any:443 in\ndeny tcp any any:443\ndeny any any any on nowhere0\n";
    let (status, _, errors) = check(&format!("# ours\n[filter]\nrules = '''\n{rules}'''\n"));
    assert_eq!(status, Some(1));
    assert!(errors.contains("sidestep.toml:6: there is no interface nowhere0"), "{errors}");
    let rules = rules.replace(" on nowhere0", "");
    let (status, text, errors) = check(&format!("# ours\n[filter]\nrules = '''\n{rules}'''\n"));
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{text}");
    assert!(text.contains("sidestep.toml: 3 rules, default permit"), "{text}");
    let (status, _, errors) = check("[filter]\nrules = '''\ndeny any any\n allow\n'''");
    assert_eq!(status, Some(1));
    assert!(
        errors.contains("sidestep.toml:3: filter.rules: column 13: where packets go"),
        "{errors}"
    );
    let (_, _, errors) = check("[filter]\nfile = \"/x\"\nrules = \"default deny\"");
    assert!(errors.contains("use one of them"), "{errors}");
    let (_, _, errors) = check("[filter]\nrules = 7");
    assert!(errors.contains("7 is not allowed; use text, with a rule in each line"), "{errors}");
}

#[test]
fn a_test_names_the_rule_and_what_it_hides() {
    let place = Place::new();
    let file =
        place.file("rules", "deny tcp 10.1.0.0/16 any in\npermit tcp any any:443\ndefault deny");
    place.file(".config/sidestep/sidestep.toml", "[filter]\nfile = \"/nowhere\"\n");
    let test = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        let mut command = place.sidestep(None);
        outcome(command.args(["filter", "test"]).args(words).arg("--file").arg(&file))
    };
    let (status, text, _) = test("tcp 10.1.2.3:5000 192.0.2.7:443 in");
    assert_eq!(status, Some(0));
    assert_eq!(
        text,
        "tcp 10.1.2.3:5000 192.0.2.7:443 in\n  -> deny: line 1: deny tcp 10.1.0.0/16 any in\n  \
         Without it the answer would be another, by line 2: permit tcp any any:443\n"
    );
    let text = test("udp [2001:db8::1]:53 [2001:db8::2]:53 out").1;
    assert!(text.ends_with("-> deny: no rule matches, so the default decides\n"), "{text}");
    for (words, error) in [
        ("tcp 10.1.2.3 10.1.2.4:1 in", "a packet of this protocol has a port at each end"),
        ("tcp 10.1.2.0/24:1 10.1.2.4:1 in", "a packet has an address at each end"),
        ("any 10.1.2.3 10.1.2.4 in", "a packet has one protocol"),
        ("icmp 10.1.2.3 10.1.2.4 in", "a packet of icmp has a type"),
        ("tcp 10.1.2.3:1 [::1]:1 in", "the two addresses are of different families"),
        ("tcp 10.1.2.3:1 10.1.2.4:1 in --on nowhere0", "there is no interface nowhere0"),
    ] {
        let (status, _, errors) = test(words);
        assert_eq!(status, Some(1), "{words}");
        assert!(errors.contains(error), "{words}: {errors}");
    }
}

#[test]
fn rules_of_others_become_a_list_and_what_does_not_is_named() {
    let place = Place::new();
    let import = |text: &str| {
        let file = place.file("saved", text);
        outcome(place.sidestep(None).args(["filter", "import", "iptables"]).arg(file))
    };
    let rule = "*filter\n-A INPUT -s 10.0.0.0/8 -p tcp -m tcp --dport 22 -j ACCEPT\n";
    let (status, list, errors) = import(rule);
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    assert_eq!(list, "permit tcp 10.0.0.0/8 any:22 in\ndefault permit\n");
    let (status, list, errors) = import(&format!("{rule}-A INPUT -j WEB\n"));
    assert_eq!(status, Some(1));
    assert!(
        list.contains("\n# left out: line 3: -A INPUT -j WEB: its target is `WEB`\n"),
        "{list}"
    );
    assert!(errors.contains("left out: line 3"), "{errors}");
    assert_eq!(import("nothing").0, Some(1));
}

#[test]
fn a_list_is_applied_changed_and_removed() {
    let Some(host) = Host::make() else { return };
    let file = host.place.file("rules", "deny udp any any:53 out\ndefault permit\n");
    assert!(host.sidestep("show").1.contains("no filter is in force"));
    assert!(host.sidestep("list").2.contains("`sidestep filter apply FILE`"));
    let cgroup = host.cgroup.path().display().to_string();
    let apply = format!("apply {} --cgroup {cgroup}", file.display());
    let (status, text, errors) = host.sidestep(&apply);
    // Other tests have programs of another version, and gateways that end just then.
    let is_odd = |line: &str| {
        !line.contains("of another version") && !line.contains("the gateway of process")
    };
    assert_eq!((status, errors.lines().find(|line| is_odd(line))), (Some(0), None));
    assert!(text.contains("1 rule of") && text.contains("no filter was before"), "{text}");
    assert_eq!([host.passes(53), host.passes(54)], [false, true]);

    let show: Value = serde_json::from_str(&host.sidestep("show --json").1).unwrap();
    assert_eq!((&show["rules"], &show["cgroup"]), (&1.into(), &cgroup.as_str().into()));
    let list: Value = serde_json::from_str(&host.sidestep("list --json").1).unwrap();
    assert_eq!((&list[0]["packets"], &list[0]["line"]), (&1.into(), &1.into()));
    assert!(list[1]["packets"].as_u64().unwrap() >= 1 && list[1]["rule"] == "default permit");
    let text = host.sidestep("test udp 127.0.0.1:4000 127.0.0.1:53 out").1;
    assert!(text.contains("deny: line 1: deny udp any any:53 out"), "{text}");

    host.place.file("rules", "deny udp any any:54 out\ndefault permit\n");
    let diff = host.sidestep(&format!("diff {}", file.display())).1;
    assert_eq!(diff, "- line 1: deny udp any any:53 out\n+ line 1: deny udp any any:54 out\n");
    let text = host.sidestep(&format!("apply {}", file.display())).1;
    assert!(text.contains("1 new, 1 gone; before 1 rule"), "{text}");
    assert_eq!([host.passes(53), host.passes(54)], [true, false]);
    let applied = host.sidestep(&format!("apply --json {}", file.display())).1;
    let applied: Value = serde_json::from_str(&applied).unwrap();
    assert_eq!((&applied["rules"], &applied["reset"]["in_shared_memory"]), (&1.into(), &0.into()));

    // A mistake changes nothing, nor does another group.
    let wrong = host.place.file("wrong", "deny udp any any:55 out\nallow\n");
    let (status, _, errors) = host.sidestep(&format!("apply {}", wrong.display()));
    assert_eq!(status, Some(1), "{errors}");
    let (status, _, errors) = host.sidestep(&format!("apply {} --cgroup /", file.display()));
    assert!(status == Some(1) && errors.contains("`sidestep filter remove` first"), "{errors}");
    assert_eq!([host.passes(53), host.passes(54), host.passes(55)], [true, false, true]);

    assert_eq!(host.sidestep("remove").0, Some(0));
    assert_eq!([host.passes(53), host.passes(54)], [true, true]);
    assert_eq!(host.sidestep("remove").0, Some(1));
}

#[test]
fn the_log_has_one_reader_that_hears_on_when_the_list_changes() {
    let Some(host) = Host::make() else { return };
    let file = host.place.file("rules", "deny udp any any:53 out log\n");
    let cgroup = host.cgroup.path().display().to_string();
    assert!(host.sidestep("watch").2.contains("no filter is in force"));
    let apply = format!("apply {} --cgroup {cgroup}", file.display());
    assert_eq!(host.sidestep(&apply).0, Some(0));
    assert!(!host.passes(53));

    let mut watch = host.command("watch --json").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let line = next();
    assert_eq!(line["rule"], "line 1: deny udp any any:53 out log", "it came before its reader");
    let told = ["action", "way", "user"].map(|member| line[member].as_str().unwrap());
    assert_eq!(told, ["deny", "out", "root"]);
    assert_eq!((&line["destination_port"], &line["bytes"]), (&53.into(), &30.into()));
    let group = line["cgroup"].as_str().unwrap();
    assert!(cgroup.ends_with(group) && group.len() > 1, "{line}");

    let (status, _, errors) = host.sidestep("watch");
    assert!(status == Some(1) && errors.contains("goes to one reader"), "{errors}");
    host.place.file("rules", "# another\ndeny udp any any:54 out log\n");
    assert_eq!(host.sidestep(&apply).0, Some(0));
    assert!(!host.passes(54));
    assert_eq!(next()["rule"], "line 2: deny udp any any:54 out log");
    terminate(&watch);
    assert_eq!(watch.wait().unwrap().code(), Some(0), "a signal is its end");

    let watch = host.command("watch").stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(host.sidestep("remove").0, Some(0));
    let ended = watch.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let errors = String::from_utf8(ended.stderr).unwrap();
    // It may have come too late to find it.
    assert!(errors.contains("the filter was removed") || errors.contains("no filter"), "{errors}");
}

#[test]
fn programs_of_others_are_shown_and_metrics_are_told() {
    let Some(host) = Host::make() else { return };
    let file = host.place.file("rules", "deny udp any any:53 out\n");
    let cgroup = host.cgroup.path().display().to_string();
    let apply = format!("apply {} --cgroup {cgroup}", file.display());
    assert_eq!(host.sidestep(&apply).0, Some(0));
    assert_eq!([host.passes(53), host.passes(54)], [false, true]);
    let show = || -> Value { serde_json::from_str(&host.sidestep("show --json").1).unwrap() };
    // Around it is the group of all processes, where another test has a filter for a while.
    let others = || -> Vec<Value> {
        let all = show()["other_programs"].as_array().unwrap().clone();
        all.into_iter().filter(|it| it["cgroup"] == cgroup.as_str()).collect()
    };
    assert_eq!(others(), Vec::<Value>::new());
    assert_eq!(show()["packets_denied"], 1);

    let other = host.attach_other("default permit");
    let others = others();
    let names: Vec<_> = others.iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["gate_in", "gate_out"]);
    assert_eq!(others[0]["user"], "root");
    let text = host.sidestep("show").1;
    assert!(text.contains("  out  gate_out, number ") && text.contains("loaded by root"), "{text}");
    other.remove().unwrap();

    let metrics = host.metrics();
    for line in [
        "sidestep_filter_packets_total{action=\"deny\"} 1",
        "sidestep_filter_log_lines_lost_total{reason=\"rate\"} 0",
        &format!("sidestep_filter_rules{{file=\"{}\"}} 1", file.display()),
    ] {
        assert!(metrics.contains(line), "no {line} in:\n{metrics}");
    }
}

#[test]
fn a_rule_is_added_at_its_place_and_shown() {
    let Some(host) = Host::make() else { return };
    let text = "# mine\npermit udp any any:53 out\ndeny udp any any:53-54 out\n";
    let file = host.place.file("rules", text);
    let passes = || [53, 54, 55].map(|port| host.passes(port));
    assert!(host.sidestep("add deny any any any").2.contains("no filter is in force"));
    let cgroup = host.cgroup.path().display().to_string();
    host.sidestep(&format!("apply {} --cgroup {cgroup}", file.display()));
    assert_eq!(passes(), [true, false, true]);

    let (status, text, errors) = host.sidestep("add --last deny udp any any:55 out");
    assert_eq!(status, Some(0), "{errors}");
    assert!(
        text.starts_with("in force: deny udp any any:55 out, after ") && !text.contains("whole")
    );
    assert_eq!(passes(), [true, false, false]);
    let added: Value =
        serde_json::from_str(&host.sidestep("add --before 3 --json permit udp any any:54").1)
            .unwrap();
    assert_eq!(
        (&added["compiled_whole"], &added["rule"]),
        (&false.into(), &"permit udp any any:54".into())
    );
    assert_eq!(passes(), [true, true, false]);
    let list: Value = serde_json::from_str(&host.sidestep("list --json").1).unwrap();
    let row = |n: usize| (list[n]["line"].as_u64(), list[n]["rule"].as_str().unwrap().to_owned());
    assert_eq!(row(0), (Some(2), "permit udp any any:53 out".to_owned()));
    assert_eq!(row(1), (None, "permit udp any any:54".to_owned()));
    assert_eq!(row(3), (None, "deny udp any any:55 out".to_owned()));
    // To the port, and where it arrived there was no socket.
    assert_eq!([&list[1]["packets"], &list[3]["packets"]], [1, 2]);
    assert!(host.sidestep("show").1.contains("/rules, 2 added since, default permit"));
    let test = host.sidestep("test udp 127.0.0.1:9 127.0.0.1:54 out").1;
    assert!(test.contains("-> permit: added: permit udp any any:54\n"), "{test}");
    assert!(test.contains("by line 3: deny udp any any:53-54 out"), "{test}");
    let diff = host.sidestep(&format!("diff {}", file.display())).1;
    assert_eq!(diff, "- added: permit udp any any:54\n- added: deny udp any any:55 out\n");

    // What the programs do not find out makes the list anew, and is at its place as well.
    let (status, text, errors) = host.sidestep("add deny udp any any:53 out user root");
    assert_eq!(status, Some(0), "{errors}");
    assert!(text.contains("the whole list was compiled with it"), "{text}");
    assert_eq!(passes(), [false, true, false]);
    let list = host.sidestep("list").1;
    assert!(
        list.contains("deny udp any any:53 out user root") && !list.contains("added"),
        "{list}"
    );

    for (words, error) in [
        ("deny udp any any:x", "`deny udp any any:x`: 1:18: `x` is no port"),
        ("default deny", "`default deny`: a rule is meant"),
        ("--before 1 deny any any any", "line 1 of the list has no rule"),
        ("deny any any any on nowhere0", "there is no interface nowhere0 here"),
    ] {
        let (status, _, errors) = host.sidestep(&format!("add {words}"));
        assert!(status == Some(1) && errors.contains(error), "{words}: {errors}");
    }
    assert_eq!(passes(), [false, true, false], "a mistake changes nothing");
    host.sidestep(&format!("apply {}", file.display()));
    assert_eq!(passes(), [true, false, true], "the file is what it was");
    assert_eq!(host.sidestep("remove").0, Some(0));
}

/// The units are directories below the group of the test, in slices as systemd has them.
#[test]
fn rules_for_a_unit_hold_for_it_when_it_comes_and_when_it_comes_again() {
    let Some(host) = Host::make() else { return };
    let root = Cgroup::root().unwrap();
    let name = format!("sidestep-test-{}.slice", std::process::id());
    let slice = Directory::make(root.join(&name));
    let unit = slice.0.join("sidestep-web.service");
    let rules =
        "deny udp any any:53 out unit sidestep-web.service\ndeny udp any any:54 out cgroup /";
    let file = host.place.file("rules", &format!("{rules}{name}\n"));
    let wrong = host.place.file("wrong", "deny any any any unit web\n");
    let (status, _, errors) = host.sidestep(&format!("check {}", wrong.display()));
    assert!(status == Some(1) && errors.contains(":1:23: `web` is no unit"), "{errors}");

    let (status, _, errors) =
        host.sidestep(&format!("apply {} --cgroup {}", file.display(), root.display()));
    assert_eq!(status, Some(0), "{errors}");
    assert!(
        errors.contains("no control group /system.slice/sidestep-web.service now"),
        "it is told where it would be: {errors}"
    );
    let within = |group: &Path, port| host.passes_within(group, port);
    assert_eq!([53, 54].map(|port| within(&slice.0, port)), [true, false]);

    let mut follow = host.command("resolve --follow").spawn().unwrap();
    for _ in 0..2 {
        let unit = Directory::make(unit.clone());
        eventually("it is the unit", || (!within(&unit.0, 53)).then_some(()));
        assert!(!within(&unit.0, 54), "it is in the slice");
        assert!(within(&slice.0, 53));
    }
    terminate(&follow);
    assert_eq!(follow.wait().unwrap().code(), Some(0), "a signal is its end");

    let _unit = Directory::make(unit.clone());
    assert!(within(&unit, 53), "another one again, and it was not looked for");
    let (status, text, errors) = host.sidestep("resolve");
    assert_eq!(
        (status, text.as_str()),
        (Some(0), "2 of 2 control groups in rules are there\n"),
        "{errors}"
    );
    assert!(!within(&unit, 53));

    let test =
        |more: &str| host.sidestep(&format!("test udp 127.0.0.1:9 127.0.0.1:53 out{more}")).1;
    assert!(
        test(" --unit sidestep-web.service").contains("deny: line 1: deny udp any any:53 out unit")
    );
    assert!(test("").contains("permit: no rule matches"));
    assert!(test(&format!(" --cgroup /{name}/other")).contains("permit: no rule matches"));
    assert!(test(&format!(" --cgroup /{name}/sidestep-web.service/x")).contains("deny: line 1"));
    assert_eq!(host.sidestep("remove").0, Some(0));
    assert_eq!(host.sidestep("resolve").0, Some(1));
}

/// A control group that is removed at the end; programs in it have ended by then.
struct Directory(PathBuf);

impl Directory {
    fn make(path: PathBuf) -> Self {
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let deadline = Instant::now() + HANG;
        // What has ended in it is gone a moment later.
        while std::fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {}
    }
}

#[test]
fn doctor_names_the_rule_that_denies_rdma_to_a_peer() {
    let Some(host) = Host::make() else { return };
    let cgroup = host.cgroup.path().display().to_string();
    let check = |rules: &str| {
        let file = host.place.file("rules", rules);
        let apply = format!("apply {} --cgroup {cgroup}", file.display());
        assert_eq!(host.sidestep(&apply).0, Some(0));
        let mut doctor = host.within(Path::new(env!("CARGO_BIN_EXE_sidestep")));
        let report = outcome(doctor.args(["doctor", "--json", "--peer", "127.0.0.1"])).1;
        let report: Value = serde_json::from_str(&report).unwrap();
        let checks = report["checks"].as_array().unwrap().clone();
        checks.into_iter().find(|it| it["check"] == "IP filter to the peer").unwrap()
    };
    let denied = check("permit tcp any any\n\ndeny udp any any:4000-5000 in\n");
    assert_eq!(denied["status"], "warn");
    let finding = denied["finding"].as_str().unwrap();
    assert!(finding.contains("/rules:3: deny udp any any:4000-5000 in"), "{finding}");
    assert_eq!(check("permit udp any any:4791\n")["status"], "ok");
    let by_default = check("permit udp any any:4791 out\ndefault deny\n");
    assert!(
        by_default["finding"].as_str().unwrap().contains("/rules: default deny"),
        "{by_default}"
    );
}

/// The host is a router between a neighbour and a network without hosts.
#[test]
fn forwarded_packets_are_judged_shown_and_counted() {
    let Some(host) = Host::make() else { return };
    let neighbour = Neighbour::of(&host);
    let file = host.place.file("rules", "deny udp any any:53 forwarded\n");
    let apply = format!("apply {} --cgroup {}", file.display(), host.cgroup.path().display());
    let (status, _, errors) = host.sidestep(&format!("{apply} --forwarded to-net,nowhere0"));
    assert_eq!(status, Some(1));
    assert!(errors.contains("there is no interface nowhere0 here"), "{errors}");
    assert!(host.sidestep("show").1.contains("no filter is in force"));

    let (status, text, errors) = host.sidestep(&format!("{apply} --forwarded to-net"));
    if errors.contains("Linux 6.6") {
        return println!("skipped: {errors}");
    }
    assert_eq!(status, Some(0), "{errors}");
    assert!(text.contains("; forwarded packets by to-net; no filter was before"), "{text}");
    for port in [53, 53, 54] {
        neighbour.send(port);
    }
    let show = || -> Value { serde_json::from_str(&host.sidestep("show --json").1).unwrap() };
    let counts =
        |show: &Value| ["forwarded_permitted", "forwarded_denied"].map(|it| show[it].as_u64());
    assert_eq!(counts(&show()), [Some(1), Some(2)]);
    let text = host.sidestep("show").1;
    let line = "\nof packets forwarded by to-net: 1 passed, 2 were denied\n";
    assert!(text.contains(line), "{text}");
    let list: Value = serde_json::from_str(&host.sidestep("list --json").1).unwrap();
    assert_eq!([&list[0]["packets"], &list[1]["packets"]], [2, 1]);
    let line = "sidestep_filter_forwarded_packets_total{action=\"deny\"} 2";
    let metrics = host.metrics();
    assert!(metrics.contains(line), "{metrics}");
    let test = host.sidestep("test udp 10.1.0.1:9 10.2.0.7:53 forwarded --on to-net").1;
    assert!(test.contains("deny: line 1: deny udp any any:53 forwarded"), "{test}");

    // A program of another at the interface is shown, and a packet passes if both let it pass.
    let other = host.attach_other("deny udp any any:54 forwarded");
    host.within_network(|| {
        let index = nix::net::if_::if_nametoindex("to-net").unwrap();
        other.judge_forwarded(&[index]).unwrap();
    });
    neighbour.send(54);
    assert_eq!(counts(&show()), [Some(1), Some(2)], "the other one is asked first, and drops it");
    assert_eq!(other.totals().unwrap().forwarded_denied, 1);
    neighbour.send(53);
    assert_eq!(other.totals().unwrap().forwarded_permitted, 1);
    assert_eq!(counts(&show()), [Some(1), Some(3)], "what the other one permits is judged here");
    let others = show()["other_programs"].clone();
    let of_interface: Vec<&Value> =
        others.as_array().unwrap().iter().filter(|it| it["interface"] == "to-net").collect();
    assert_eq!(of_interface.len(), 1);
    assert_eq!(of_interface[0]["name"], "gate_forwarded");
    assert_eq!(
        (&of_interface[0]["way"], &of_interface[0]["is_asked_first"]),
        (&"out".into(), &true.into())
    );
    assert!(host.sidestep("show").1.contains("at to-net, asked first: "));
    other.remove().unwrap();

    // What is not confirmed is taken back here as well; without a word the configuration decides.
    let (status, _, _) = host.sidestep(&format!("{apply} --confirm 1s"));
    assert_eq!(status, Some(1));
    assert_eq!(
        show()["forwarded"],
        serde_json::json!([{"interface": "to-net", "is_judged": true}])
    );
    neighbour.send(53);
    assert_eq!(counts(&show())[1], Some(4));
    let configuration = host.place.file("sidestep.toml", "[filter]\nforwarded = [\"to-us\"]\n");
    let apply = format!("{apply} --config {}", configuration.display());
    assert_eq!(host.sidestep(&apply).0, Some(0));
    assert_eq!(show()["forwarded"], serde_json::json!([{"interface": "to-us", "is_judged": true}]));

    host.run("ip link del to-us");
    let text = host.sidestep("show").1;
    assert!(text.contains("to-us (not judged there now: apply the list again)"), "{text}");
}

/// Who has locked himself out does not press the key.
#[test]
fn what_is_not_confirmed_is_taken_back() {
    let Some(host) = Host::make() else { return };
    let cgroup = host.cgroup.path().display().to_string();
    let file = host.place.file("rules", "deny udp any any:53 out\n");
    let apply = format!("apply {} --confirm 1s --cgroup {cgroup}", file.display());
    let applied = |answer: Option<&str>| {
        let mut child = host.command(&apply).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        if let Some(answer) = answer {
            stdin.write_all(answer.as_bytes()).unwrap();
        }
        let begin = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < HANG, "it waits for ever");
            thread::sleep(Duration::from_millis(20));
        }
        drop(stdin);
        child.wait().unwrap().code()
    };
    assert_eq!((applied(None), host.passes(53)), (Some(1), true), "from nothing to nothing");
    assert_eq!((applied(Some("half a line")), host.passes(53)), (Some(1), true));
    assert_eq!((applied(Some("\n")), host.passes(53)), (Some(0), false));
    host.place.file("rules", "deny udp any any:54 out\n");
    assert_eq!(applied(None), Some(1));
    assert_eq!([host.passes(53), host.passes(54)], [false, true], "the list before");
    let list = host.sidestep("list").1;
    assert!(list.contains("deny udp any any:53 out"), "{list}");
}

/// Namespaces for network and mounts, kept by a process, and a control group.
struct Host {
    place: Place,
    cgroup: Cgroup,
    keeper: Child,
}

impl Host {
    /// None, with a printed line, where that cannot be had.
    fn make() -> Option<Self> {
        let cgroup = match sidestep_bpf::available().and_then(|()| Cgroup::create_for_run()) {
            Ok(cgroup) => cgroup,
            Err(lacking) => {
                println!("skipped: {lacking}");
                return None;
            }
        };
        let script = "mount -t bpf bpf /sys/fs/bpf && mount -t tmpfs none /run && \
                      ip link set lo up && echo ready && read end";
        let mut keeper = Command::new("unshare")
            .args(["--net", "--mount", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Some(Self { place: Place::new(), cgroup, keeper })
    }

    fn within(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        let keeper = self.keeper.id().to_string();
        command.args(["--net", "--mount", "--target", &keeper]).arg(program);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    fn command(&self, words: &str) -> Command {
        let mut command = self.within(Path::new(env!("CARGO_BIN_EXE_sidestep")));
        command.arg("filter").args(words.split(' ')).current_dir(self.place.path());
        command
    }

    fn run(&self, command: &str) {
        let mut words = command.split(' ');
        let mut command = self.within(Path::new(words.next().unwrap()));
        assert!(command.args(words).status().unwrap().success(), "{command:?}");
    }

    fn sidestep(&self, words: &str) -> (Option<i32>, String, String) {
        outcome(&mut self.command(words))
    }

    /// The filter of another program, for the same group.
    fn attach_other(&self, rules: &str) -> Filter {
        let pins = format!("/proc/{}/root/sys/fs/bpf/other", self.keeper.id());
        let list = RuleList::parse(rules).unwrap();
        let graph = compile(&list, &NoNames).unwrap().graph;
        let groups = GroupNumbers::default();
        let rules = list.rules.len();
        let set = RuleSet { graph: &graph, rules, identity: [1; 7], groups: &groups };
        Filter::attach(Path::new(&pins), self.cgroup.path(), &set).unwrap()
    }

    /// Does something on a thread in the network namespace.
    fn within_network(&self, work: impl FnOnce() + Send) {
        let namespace = File::open(format!("/proc/{}/ns/net", self.keeper.id())).unwrap();
        let kind = Some(LinkNameSpaceType::Network);
        let entered = || {
            move_into_link_name_space(namespace.as_fd(), kind).unwrap();
            work();
        };
        thread::scope(|scope| scope.spawn(entered).join().unwrap());
    }

    /// What an agent in the namespaces tells Prometheus.
    fn metrics(&self) -> String {
        let mut command = self.within(Path::new(env!("CARGO_BIN_EXE_sidestep")));
        command.args(["agent", "--metrics", "127.0.0.1:9464", "--cgroup"]).arg(self.cgroup.path());
        let mut agent =
            command.arg("--socket").arg(self.place.path().join("agent")).spawn().unwrap();
        let script = "exec 3<>/dev/tcp/127.0.0.1/9464 && \
                      printf 'GET /metrics HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n' >&3 && timeout 10 cat <&3";
        let begin = Instant::now();
        let metrics = loop {
            let (status, text, errors) =
                outcome(self.within(Path::new("bash")).args(["-c", script]));
            if status == Some(0) {
                break text;
            }
            assert!(begin.elapsed() < HANG, "{errors}");
            thread::sleep(Duration::from_millis(50));
        };
        terminate(&agent);
        agent.wait().unwrap();
        metrics
    }

    /// Whether a program of the group may send to a port.
    fn passes(&self, port: u16) -> bool {
        self.passes_within(self.cgroup.path(), port)
    }

    fn passes_within(&self, group: &Path, port: u16) -> bool {
        let group = group.display();
        let script =
            format!("echo $$ > {group}/cgroup.procs && echo x > /dev/udp/127.0.0.1/{port}");
        let mut command = self.within(Path::new("bash"));
        command.args(["-c", &script]).stderr(Stdio::null()).status().unwrap().success()
    }
}

/// A host that reaches all others by this one.
struct Neighbour {
    keeper: Child,
}

impl Neighbour {
    fn of(host: &Host) -> Self {
        let mut command = host.within(Path::new("unshare"));
        let keeper = command.args(["--net", "sh", "-c", "echo ready && read end"]);
        let keeper = keeper.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper = keeper.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let neighbour = Self { keeper };
        let its = neighbour.keeper.id();
        for command in [
            &format!("ip link add to-us type veth peer name us netns {its}"),
            "ip addr add 10.1.0.2/24 dev to-us",
            "ip link set to-us up",
            "ip link add to-net type veth peer name net",
            "ip addr add 10.2.0.2/24 dev to-net",
            "ip link set net up",
            "ip link set to-net up",
            "ip neigh add 10.2.0.7 lladdr 02:00:00:00:00:07 dev to-net",
            "sysctl -qw net.ipv4.ip_forward=1",
        ] {
            host.run(command);
        }
        neighbour.run("ip addr add 10.1.0.1/24 dev us && ip link set us up");
        neighbour.run("ip route add default via 10.1.0.2");
        neighbour
    }

    fn run(&self, script: &str) {
        let keeper = self.keeper.id().to_string();
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &keeper, "bash", "-c", script]);
        assert!(command.status().unwrap().success(), "{script}");
    }

    fn send(&self, port: u16) {
        self.run(&format!("echo x > /dev/udp/10.2.0.7/{port}"));
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        _ = self.keeper.kill();
        _ = self.keeper.wait();
    }
}

fn terminate(child: &Child) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").arg(pid).status().unwrap().success());
}

impl Drop for Host {
    fn drop(&mut self) {
        // The namespaces end with it, and what is pinned in them.
        _ = self.keeper.kill();
        _ = self.keeper.wait();
    }
}
