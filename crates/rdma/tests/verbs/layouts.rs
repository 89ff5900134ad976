//! The structures of [`abi`], compared with those of the library's header by a C program.

use std::fmt::Write;
use std::fs;
use std::mem::{offset_of, size_of};
use std::process::Command;

use sidestep_rdma::verbs::abi;

/// Offsets of fields that have the same name in C, behind its own if that has another.
macro_rules! layout {
    ($type:ident, $c:literal: $($field:ident $(= $name:literal)?),*) => {
        Layout {
            name: $c,
            size: size_of::<abi::$type>(),
            fields: vec![
                $((
                    [$($name,)? stringify!($field)][0],
                    offset_of!(abi::$type, $field),
                )),*
            ],
        }
    };
}

struct Layout {
    /// In C.
    name: &'static str,
    size: usize,
    fields: Vec<(&'static str, usize)>,
}

/// Structures that we allocate: their sizes count, too.
fn ours() -> Vec<Layout> {
    vec![
        layout!(DeviceAttr, "struct ibv_device_attr":
            fw_ver, max_mr_size, max_qp, max_qp_wr, max_sge, max_cq, max_cqe, limits = "max_mr",
            max_pkeys, phys_port_cnt),
        layout!(PortAttr, "struct ibv_port_attr":
            state, max_mtu, active_mtu, gid_tbl_len, pkey_tbl_len, lid, phys_state, link_layer,
            flags, port_cap_flags2),
        layout!(GidEntry, "struct ibv_gid_entry":
            gid, gid_index, port_num, gid_type, ndev_ifindex),
        layout!(QpCap, "struct ibv_qp_cap":
            max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data),
        layout!(QpInitAttr, "struct ibv_qp_init_attr":
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all),
        layout!(GlobalRoute, "struct ibv_global_route":
            dgid, flow_label, sgid_index, hop_limit, traffic_class),
        layout!(AhAttr, "struct ibv_ah_attr": grh, dlid, sl, is_global, port_num),
        layout!(QpAttr, "struct ibv_qp_attr":
            qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr,
            alt_ah_attr, pkey_index, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num,
            timeout, retry_cnt, rnr_retry, alt_timeout, rate_limit),
        layout!(Sge, "struct ibv_sge": addr, length, lkey),
        layout!(SendWr, "struct ibv_send_wr":
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data,
            remote_addr = "wr.rdma.remote_addr", rkey = "wr.rdma.rkey"),
        layout!(RecvWr, "struct ibv_recv_wr": wr_id, next, sg_list, num_sge),
        layout!(Wc, "struct ibv_wc":
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags,
            dlid_path_bits),
        layout!(AsyncEvent, "struct ibv_async_event": element, event_type),
        layout!(Mr, "struct ibv_mr": context, pd, addr, length, handle, lkey, rkey),
    ]
}

/// Structures that the library allocates: they may be longer.
fn theirs() -> Vec<Layout> {
    vec![
        layout!(Context, "struct ibv_context":
            device, ops, cmd_fd, async_fd, num_comp_vectors),
        layout!(ContextOps, "struct ibv_context_ops":
            poll_cq, req_notify_cq, post_send, post_recv),
        layout!(Pd, "struct ibv_pd": context, handle),
        layout!(CompChannel, "struct ibv_comp_channel": context, fd),
        layout!(Cq, "struct ibv_cq": context, channel, cq_context),
        layout!(Qp, "struct ibv_qp":
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num),
    ]
}

/// Numbers, and what C calls them.
const NUMBERS: [(u64, &str); 41] = [
    (abi::GID_TYPE_ROCE_V1 as u64, "IBV_GID_TYPE_ROCE_V1"),
    (abi::GID_TYPE_ROCE_V2 as u64, "IBV_GID_TYPE_ROCE_V2"),
    (abi::PORT_ACTIVE as u64, "IBV_PORT_ACTIVE"),
    (abi::LINK_LAYER_ETHERNET as u64, "IBV_LINK_LAYER_ETHERNET"),
    (abi::event::CQ_ERR as u64, "IBV_EVENT_CQ_ERR"),
    (abi::event::QP_FATAL as u64, "IBV_EVENT_QP_FATAL"),
    (abi::event::QP_REQ_ERR as u64, "IBV_EVENT_QP_REQ_ERR"),
    (abi::event::QP_ACCESS_ERR as u64, "IBV_EVENT_QP_ACCESS_ERR"),
    (abi::event::DEVICE_FATAL as u64, "IBV_EVENT_DEVICE_FATAL"),
    (abi::event::PORT_ACTIVE as u64, "IBV_EVENT_PORT_ACTIVE"),
    (abi::event::PORT_ERR as u64, "IBV_EVENT_PORT_ERR"),
    (abi::event::GID_CHANGE as u64, "IBV_EVENT_GID_CHANGE"),
    (abi::status::SUCCESS as u64, "IBV_WC_SUCCESS"),
    (abi::status::LOC_LEN_ERR as u64, "IBV_WC_LOC_LEN_ERR"),
    (abi::status::WR_FLUSH_ERR as u64, "IBV_WC_WR_FLUSH_ERR"),
    (abi::status::REM_INV_REQ_ERR as u64, "IBV_WC_REM_INV_REQ_ERR"),
    (abi::status::REM_ACCESS_ERR as u64, "IBV_WC_REM_ACCESS_ERR"),
    (abi::status::REM_OP_ERR as u64, "IBV_WC_REM_OP_ERR"),
    (abi::status::RETRY_EXC_ERR as u64, "IBV_WC_RETRY_EXC_ERR"),
    (abi::status::RNR_RETRY_EXC_ERR as u64, "IBV_WC_RNR_RETRY_EXC_ERR"),
    (abi::status::RESP_TIMEOUT_ERR as u64, "IBV_WC_RESP_TIMEOUT_ERR"),
    (abi::ACCESS_LOCAL_WRITE as u64, "IBV_ACCESS_LOCAL_WRITE"),
    (abi::ACCESS_REMOTE_WRITE as u64, "IBV_ACCESS_REMOTE_WRITE"),
    (abi::QPT_RC as u64, "IBV_QPT_RC"),
    (abi::state::INIT as u64, "IBV_QPS_INIT"),
    (abi::state::RTR as u64, "IBV_QPS_RTR"),
    (abi::state::RTS as u64, "IBV_QPS_RTS"),
    (abi::state::ERR as u64, "IBV_QPS_ERR"),
    (abi::mask::STATE as u64, "IBV_QP_STATE"),
    (abi::mask::ACCESS_FLAGS as u64, "IBV_QP_ACCESS_FLAGS"),
    (abi::mask::PKEY_INDEX as u64, "IBV_QP_PKEY_INDEX"),
    (abi::mask::PORT as u64, "IBV_QP_PORT"),
    (abi::mask::AV as u64 | abi::mask::PATH_MTU as u64, "IBV_QP_AV | IBV_QP_PATH_MTU"),
    (abi::mask::TIMEOUT as u64 | abi::mask::RETRY_CNT as u64, "IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT"),
    (abi::mask::RNR_RETRY as u64 | abi::mask::RQ_PSN as u64, "IBV_QP_RNR_RETRY | IBV_QP_RQ_PSN"),
    (
        abi::mask::MAX_QP_RD_ATOMIC as u64 | abi::mask::MIN_RNR_TIMER as u64,
        "IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER",
    ),
    (
        abi::mask::SQ_PSN as u64 | abi::mask::MAX_DEST_RD_ATOMIC as u64,
        "IBV_QP_SQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC",
    ),
    (abi::mask::DEST_QPN as u64, "IBV_QP_DEST_QPN"),
    (abi::WR_RDMA_WRITE as u64, "IBV_WR_RDMA_WRITE"),
    (abi::WR_SEND as u64, "IBV_WR_SEND"),
    (
        (abi::SEND_SIGNALED | abi::SEND_SOLICITED << 8 | abi::SEND_INLINE << 16) as u64,
        "IBV_SEND_SIGNALED | IBV_SEND_SOLICITED << 8 | IBV_SEND_INLINE << 16",
    ),
];

#[test]
fn layouts_are_those_of_the_header() {
    let (mut program, mut expected) = (String::from(HEAD), String::new());
    let mut compare = |c: &str, ours: u64| {
        writeln!(program, "    print(\"{c}\", {c});").unwrap();
        writeln!(expected, "{c} {ours}").unwrap();
    };
    for (layouts, is_ours) in [(ours(), true), (theirs(), false)] {
        for Layout { name, size, fields } in layouts {
            if is_ours {
                compare(&format!("sizeof({name})"), size as u64);
            }
            for (field, offset) in fields {
                compare(&format!("offsetof({name}, {field})"), offset as u64);
            }
        }
    }
    NUMBERS.iter().for_each(|(ours, c)| compare(c, *ours));
    program.push_str("    return 0;\n}\n");

    let directory = tempfile::tempdir().unwrap();
    let [source, binary] = ["layouts.c", "layouts"].map(|name| directory.path().join(name));
    fs::write(&source, program).unwrap();
    let Ok(compiled) = Command::new("cc").arg(&source).arg("-o").arg(&binary).output() else {
        println!("skipped: no C compiler");
        return;
    };
    let errors = String::from_utf8_lossy(&compiled.stderr);
    if errors.contains("infiniband/verbs.h: No such file") {
        println!("skipped: no infiniband/verbs.h (Debian: libibverbs-dev)");
        return;
    }
    assert!(compiled.status.success(), "{errors}");
    let output = Command::new(&binary).output().unwrap();
    let found = String::from_utf8(output.stdout).unwrap();
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}

const HEAD: &str = "\
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdio.h>

static void print(const char *what, unsigned long long value)
{
    printf(\"%s %llu\\n\", what, value);
}

int main(void)
{
";
