//! For each reason: what had been tried, who decided, by which setting, and what to change.

use sidestep_observe::Role;
use sidestep_proto::fallback::{Lack, OperatorSaid, PeerCannot, ProgramDid, Reason};
use sidestep_wire::Diagnosis;

/// Who decided that a connection stays on TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decider {
    /// The end that the finding is about.
    This,
    /// Its peer.
    Peer,
    /// Neither: that is how things are.
    Nobody,
}

/// What is to be said about a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Advice {
    pub(super) tried: &'static str,
    pub(super) decider: Decider,
    /// Settings that may have decided, or a rule without a setting.
    pub(super) rule: Rule,
    /// `None`: nothing should be changed.
    pub(super) change: Option<&'static str>,
}

/// What decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// One of these keys of the configuration.
    Settings(&'static [&'static str]),
    /// Something that cannot be chosen.
    Given(&'static str),
    /// Nothing of ours.
    None,
}

const NOTHING: &str = "nothing: this was known before";
const COMMON_EID: &str = "give both programs the same smc.eid, or smc.seid = true";
const AGREEING: &str = "the ends had found each other and were agreeing";

/// What decides between the gateways of two hosts, and what to change there if they have not agreed.
pub(super) fn between_hosts(diagnosis: Diagnosis) -> (&'static str, Option<&'static str>) {
    let change = match diagnosis {
        Diagnosis::NOSMCDEV | Diagnosis::NOSMCRDEV | Diagnosis::NOUEID => Some(
            "let both gateways have an adapter on the network of the connection, of its family \
             (`sidestep devices`), and a name of smc.eid in common",
        ),
        Diagnosis::DIFFPREFIX => {
            Some("let both gateways have adapters with RoCEv2, which is routed")
        }
        Diagnosis::TIMEOUT_CL | Diagnosis::TIMEOUT_AL => Some(
            "RDMA did not get through where TCP does: let firewalls on the way pass UDP port 4791 both ways \
             (`sidestep doctor --peer ADDRESS`)",
        ),
        Diagnosis::IPSEC => Some(
            "nothing, if the connection is to be protected: RDMA would pass by the policy (`ip xfrm policy`)",
        ),
        _ => None,
    };
    (
        "both hosts need adapters of one network, and a UEID in common (smc-r.adapters, smc.eid)",
        change,
    )
}

/// What to say about a reason, seen from an end in this role.
pub(super) fn of(reason: Reason, role: Role) -> Advice {
    use Decider::{Nobody, Peer, This};
    let advice = |tried, decider, rule, change| Advice { tried, decider, rule, change };
    match reason {
        Reason::None => advice(NOTHING, Nobody, Rule::None, None),
        Reason::Operator(OperatorSaid::ModeTcp) => advice(
            "nothing: connections are counted and left alone",
            This,
            Rule::Settings(&["smc.mode"]),
            Some("start the program with `sidestep run --mode smc`, or set smc.mode = \"smc\""),
        ),
        Reason::Peer(PeerCannot::RemotePeer) => advice(
            "nothing: the peer's address is not this network namespace's, and no agent tells more",
            Nobody,
            Rule::Given("both ends must be on one host, and between namespaces with an agent"),
            Some("if the peer is a container of this host, run `sidestep agent` on the host"),
        ),
        Reason::Peer(PeerCannot::PeerNotSmc) => advice(
            match role {
                Role::Client => "looked for the marker of a listener under Sidestep: none",
                Role::Server => "said hello at the name of the connection: no client had bound it",
            },
            Peer,
            Rule::None,
            Some("start the peer with `sidestep run`"),
        ),
        Reason::Operator(OperatorSaid::OtherUser) => advice(
            "heard from the kernel, or from the agent, which user's the peer is",
            This,
            Rule::Settings(&["policy.share_with_users", "policy.share_with_groups"]),
            Some(
                "run both programs as the same user, let the policy of the host allow it ([share], with \
                 `sidestep agent`), or let each list the other's in policy.share_with_users or \
                 policy.share_with_groups",
            ),
        ),
        Reason::Peer(PeerCannot::OtherNamespace) => advice(
            "compared the network namespaces of the two sockets",
            Nobody,
            Rule::Given("both ends must be in one network namespace, if no agent runs"),
            Some("run `sidestep agent`, or both programs in one network namespace"),
        ),
        Reason::Lack(Lack::NoMemory) => advice(
            AGREEING,
            This,
            Rule::Settings(&["smc.memory_limit"]),
            Some(
                "raise smc.memory_limit or, if it is 0, the limit that is short: of the control \
                 group, of address space or of descriptors",
            ),
        ),
        Reason::Lack(Lack::StrictMemory) => advice(
            "asked the kernel whether it counts the memory that it promises",
            This,
            Rule::Given("shared memory is touched without being promised before"),
            Some("set vm.overcommit_memory to 0 or 1"),
        ),
        Reason::PeerDeclined(_) => {
            advice(AGREEING, Peer, Rule::None, Some(change_of_peer(reason.peer_diagnosis())))
        }
        Reason::Program(ProgramDid::OptionUnsupported) => advice(
            "nothing: the program has set an option that only TCP has",
            This,
            Rule::Given("fast open, kernel TLS, zero copy, pacing, time stamps and the like"),
            Some("switch that option off in the program's own settings, if it has one for it"),
        ),
        Reason::Operator(OperatorSaid::PromotionNever) => advice(
            NOTHING,
            This,
            Rule::Settings(&["smc.promotion"]),
            Some("set smc.promotion = \"early\" or \"lazy\""),
        ),
        Reason::Program(ProgramDid::ForkedMeanwhile) => advice(
            AGREEING,
            This,
            Rule::Given("a connection that is being moved must have one holder"),
            None,
        ),
        Reason::PeerBroke(_) => advice(
            AGREEING,
            This,
            Rule::Given("messages must be those of the standard"),
            Some("install the same version of Sidestep for both programs"),
        ),
        Reason::Peer(PeerCannot::NothingInCommon) => advice(
            AGREEING,
            This,
            Rule::Given("both ends speak SMC-D version 2 by loopback devices, with an EID"),
            Some("install the same version of Sidestep for both programs"),
        ),
        Reason::Lack(Lack::NameTaken) => advice(
            "tried to bind the name under which the server's hello would come",
            This,
            Rule::Given("the name of a connection belongs to one process"),
            Some(
                "find the process that holds it: `ss -xap` lists names that begin with \
                 @sidestep/1/connection",
            ),
        ),
        Reason::Lack(Lack::Unwritten) => advice(
            AGREEING,
            This,
            Rule::Given("what this end says must be a message of the standard"),
            Some("report it, with the line of the log that names the field"),
        ),
        Reason::Lack(Lack::Contradiction) => advice(
            AGREEING,
            This,
            Rule::Given("what this library does must follow from what it has decided"),
            Some("report it, with the lines of the log before"),
        ),
        Reason::Lack(Lack::Beset) => advice(
            "nothing: what strangers have sent is neither taken nor dropped",
            This,
            Rule::Given(
                "a process in whose sockets strangers have left descriptors meets no new peer",
            ),
            Some("stop the program of the other user that sends them, and start this one again"),
        ),
        Reason::Unknown(_) => advice(
            "what another version of Sidestep knows to say",
            Nobody,
            Rule::None,
            Some("ask with the `sidestep` of the program's version"),
        ),
        Reason::Peer(PeerCannot::OtherVersion) => advice(
            AGREEING,
            This,
            Rule::Given("both libraries must have the same layout of memory"),
            Some(
                "start the program with the older library again, so that both run the version \
                 that is installed",
            ),
        ),
        Reason::Lack(Lack::NoSlot) => advice(
            NOTHING,
            This,
            Rule::Given("a process has 16 384 connections at a time, at most"),
            Some("spread the connections over more processes"),
        ),
        Reason::Operator(OperatorSaid::NoCommonEid) => {
            advice(AGREEING, This, Rule::Settings(&["smc.eid", "smc.seid"]), Some(COMMON_EID))
        }
        Reason::Peer(PeerCannot::Unanswered) => advice(
            AGREEING,
            Nobody,
            Rule::Given("the ends agree at calls that the programs make"),
            None,
        ),
        Reason::Program(ProgramDid::EndedMeanwhile) => advice(
            AGREEING,
            This,
            Rule::Given("a connection of which a direction has ended does not move"),
            None,
        ),
        Reason::Program(ProgramDid::StandardStream) => advice(
            NOTHING,
            This,
            Rule::Given("what is standard input, output or error stays on TCP"),
            None,
        ),
        Reason::Program(ProgramDid::HandedOver) => advice(
            NOTHING,
            This,
            Rule::Given("what is handed to another program undecided stays on TCP"),
            None,
        ),
        Reason::Program(ProgramDid::IoUring) => advice(
            "nothing: the kernel reads and writes sockets in io_uring by itself",
            This,
            Rule::Given("sockets in io_uring stay on TCP"),
            Some("choose epoll in the program's own settings, if it has one for that"),
        ),
        Reason::Program(ProgramDid::PastLibc) => advice(
            "nothing: calls past the C library would not be seen",
            This,
            Rule::Given("programs with system call instructions of their own stay on TCP"),
            Some(
                "use a build that calls the C library (Rust programs with rustix: \
                 RUSTFLAGS=--cfg=rustix_use_libc)",
            ),
        ),
        Reason::Program(ProgramDid::Filtered) => advice(
            "nothing: a filter may kill the program for calls that it does not know",
            This,
            Rule::Given("programs with a filter of system calls, or with libseccomp, stay on TCP"),
            Some("switch the sandbox off in the program's own settings, if you can do without it"),
        ),
        Reason::Operator(OperatorSaid::PortExcluded) => advice(
            NOTHING,
            This,
            Rule::Settings(&["policy.exclude_ports"]),
            Some("take the port out of policy.exclude_ports, if it should move"),
        ),
        Reason::Operator(OperatorSaid::PeerExcluded) => advice(
            NOTHING,
            This,
            Rule::Settings(&["policy.permit_peers", "policy.exclude_peers"]),
            Some(
                "let policy.permit_peers and policy.exclude_peers have the peer, if it should move",
            ),
        ),
        Reason::Operator(OperatorSaid::ProgramExcluded) => advice(
            NOTHING,
            This,
            Rule::Settings(&["policy.exclude_programs"]),
            Some("take the program out of policy.exclude_programs, if it should move"),
        ),
        Reason::Operator(OperatorSaid::OtherPnet) => advice(
            "asked the kernel which interface the connection's own address is on",
            This,
            Rule::Settings(&["pnet"]),
            Some(
                "let the PNET ID of the device \"ism\", in a table of [pnet], list that interface, \
                 if it should move",
            ),
        ),
        Reason::Operator(OperatorSaid::MemoryLimit) => advice(
            AGREEING,
            This,
            Rule::Settings(&["smc.memory_limit", "smc.user_memory_limit"]),
            Some(
                "raise smc.memory_limit or smc.user_memory_limit, whichever is reached, or give \
                 connections smaller rings by smc.rmbe_size",
            ),
        ),
        Reason::Operator(OperatorSaid::Congested) => advice(
            NOTHING,
            This,
            Rule::Settings(&["policy.handshake_limit"]),
            Some("raise policy.handshake_limit, if the machine can bear it"),
        ),
        Reason::Program(ProgramDid::TooShort) => advice(
            "nothing yet: it has not lived long enough to be worth moving",
            This,
            Rule::Given(
                "connections move after 16 messages or 64 KiB, later at ports whose connections \
                 turned out to be short (smc.promotion, smc.autosmc)",
            ),
            None,
        ),
        Reason::Peer(PeerCannot::FailedLately) => advice(
            "nothing: agreeing with this server has failed, and it is left alone for a while",
            This,
            Rule::Settings(&["smc.autocache"]),
            Some(
                "remove the cause of that failure, which `sidestep ss --totals` shows, or, of a server \
                 on another host, the gateway's log; the server is asked again soon, or at once with \
                 smc.autocache = false",
            ),
        ),
        Reason::Program(ProgramDid::ShortLately) => advice(
            "nothing: the server is on another host, and its connections have ended too soon for SMC-R",
            This,
            Rule::Given(
                "servers on other hosts whose connections are short are left alone for a while \
                 (smc.autosmc)",
            ),
            None,
        ),
        Reason::Lack(Lack::NoAdapter) => advice(
            "nothing: the peer is on another host, and the gateway here has no adapter that is up",
            This,
            Rule::Settings(&["smc-r.adapters"]),
            Some(
                "bring up the interface of an RDMA device (`sidestep devices`), or name a soft RNIC \
                 in smc-r.adapters (`soft:eth0`)",
            ),
        ),
        Reason::Program(ProgramDid::NoGain) => advice(
            "nothing: the gateway has seen that SMC-R carries no more to and from this server than TCP",
            This,
            Rule::Given(
                "servers on other hosts with which SMC-R gains nothing are left to TCP for a while, and then \
                 compared again (smc.autosmc)",
            ),
            Some(
                "where the gateway has soft RNICs, RDMA devices would carry more; smc.autosmc = false has \
                 SMC-R all the same",
            ),
        ),
        Reason::Program(ProgramDid::Compared) => advice(
            "nothing: for some seconds connections to this server go by TCP, and the gateway looks what they carry",
            This,
            Rule::Given(
                "servers on other hosts whose connections are long are compared by both paths (smc.autosmc)",
            ),
            None,
        ),
        Reason::Peer(PeerCannot::NoTcpOption) => advice(
            "asked the agent whether SYN and SYN-ACK had the SMC option",
            Peer,
            Rule::Given("where an agent runs, both ends must have sent the option"),
            Some("start the peer with `sidestep run`"),
        ),
        Reason::Operator(OperatorSaid::Demoted) => advice(
            "taken back from shared memory, or not moved there",
            This,
            Rule::Given("an operator has said `sidestep demote`"),
            Some("sidestep promote, with the same PID or port"),
        ),
        Reason::Operator(OperatorSaid::Denied) => advice(
            "asked the IP filter of the host what packets of the connection would meet",
            This,
            Rule::Given("what the filter denies to packets it denies to shared memory"),
            Some(
                "change the list and `sidestep filter apply` it; as root, `sidestep filter test` with both \
                 addresses names the rule",
            ),
        ),
        Reason::Operator(OperatorSaid::TlsLater) => advice(
            "nothing: it is in plain text until its program asks for TLS",
            This,
            Rule::Given("a rule of [tls] has it, with controlled = true (sidestep tls)"),
            Some(
                "nothing, if the program is one that begins TLS itself; for TLS from the first byte on take controlled \
                 out of the rule",
            ),
        ),
        Reason::Lack(Lack::AgentAway) => advice(
            "called the agent at its socket: no agent was there",
            This,
            Rule::Settings(&["smc.agent_socket"]),
            Some(
                "let the program reach the agent: mount the directory of its socket into the \
                 container, or say by smc.agent_socket where it is",
            ),
        ),
        Reason::Peer(PeerCannot::LookupUnanswered) => advice(
            "asked the agent which process holds the other end: none has asked for us",
            Peer,
            Rule::Given("both ends must be on this host, and reach the same agent"),
            Some(
                "if the peer is on this host, start it with `sidestep run`, where it reaches the agent's \
                 socket",
            ),
        ),
    }
}

/// What a peer that sent this code should change.
fn change_of_peer(diagnosis: Option<Diagnosis>) -> &'static str {
    match diagnosis {
        Some(Diagnosis::MEM) => "raise smc.memory_limit, or the limit that is short, for the peer",
        Some(Diagnosis::NOUEID | Diagnosis::NOSMCDEV) => COMMON_EID,
        Some(Diagnosis::MAX_DMB) => "spread the peer's connections over more processes",
        _ => "ask `sidestep why` about the peer's process",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_proto::fallback::Blame;

    #[test]
    fn whoever_decides_by_a_setting_is_told_to_change_one() {
        for reason in Reason::all() {
            let advice = of(reason, Role::Client);
            if let Rule::Settings(keys) = advice.rule {
                assert_eq!(advice.decider, Decider::This, "{reason:?}");
                let change = advice.change.unwrap();
                assert!(keys.iter().all(|key| change.contains(key)), "{reason:?}");
            }
        }
    }

    #[test]
    fn what_is_decided_here_accuses_nobody_else() {
        for reason in Reason::all() {
            let Advice { decider, rule, .. } = of(reason, Role::Client);
            match reason.blame() {
                Some(Blame::Lack) => assert_eq!(decider, Decider::This, "{reason:?}"),
                Some(Blame::Operator | Blame::Program) => {
                    assert!(decider == Decider::This && rule != Rule::None, "{reason:?}");
                }
                Some(Blame::PeerBroke | Blame::PeerCannot) | None => {}
            }
        }
    }

    #[test]
    fn settings_are_keys_of_the_configuration() {
        for reason in Reason::all() {
            if let Rule::Settings(keys) = of(reason, Role::Server).rule {
                for key in keys {
                    assert!(crate::config::keys().any(|(known, _)| known == **key), "{key}");
                }
            }
        }
    }

    #[test]
    fn a_peers_code_says_what_it_should_change() {
        let change = |code| of(Reason::PeerDeclined(code), Role::Client).change.unwrap();
        assert!(change(Diagnosis::MEM).contains("memory_limit"));
        assert!(change(Diagnosis::NOUEID).contains("smc.eid"));
        assert!(change(Diagnosis(0)).contains("sidestep why"));
    }
}
