//! What is agreed with libibverbs: the layouts of structures and the numbers in them.
//!
//! Names are those of `infiniband/verbs.h` without their `ibv_`; what the fields mean is in the
//! manual pages (`ibv_post_send(3)`, `ibv_modify_qp(3)`, …). The layouts are an ABI that programs
//! are linked against since 2006, so they do not change any more, they only grow at ends that
//! programs do not allocate. Of structures that only the library allocates, the fields stand here
//! that are ours to read; more may follow in memory.
//!
//! The test `layouts_are_those_of_the_header` compares them with the header, where it is installed.
//!
//! *Source*: rdma-core 34 to 44, `libibverbs/verbs.h`.

#![expect(missing_docs, reason = "the manual pages of libibverbs are the documentation")]

use std::ffi::{c_char, c_int, c_uint, c_void};

// ---- what the library allocates -----------------------------------------------------------------

/// An adapter that could be opened; nothing in it is read.
#[repr(C)]
#[derive(Debug)]
pub struct Device {
    opaque: [u8; 0],
}

/// A function that is not called through its place in [`ContextOps`].
pub type Unused = *const c_void;

/// Functions of the adapter's driver. Those that C programs call inline are called through here;
/// the others are the library's symbols.
#[repr(C)]
#[derive(Debug)]
pub struct ContextOps {
    pub before_poll_cq: [Unused; 11],
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    pub before_post_send: [Unused; 12],
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    pub after_post_recv: [Unused; 5],
}

/// An open adapter.
#[repr(C)]
#[derive(Debug)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
}

/// A protection domain: a key of one fits on no queue pair of another.
#[repr(C)]
#[derive(Debug)]
pub struct Pd {
    pub context: *mut Context,
    pub handle: u32,
}

/// A registration of memory.
#[repr(C)]
#[derive(Debug)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// Where completion queues announce that they are not empty.
#[repr(C)]
#[derive(Debug)]
pub struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
}

/// A completion queue.
#[repr(C)]
#[derive(Debug)]
pub struct Cq {
    pub context: *mut Context,
    pub channel: *mut CompChannel,
    pub cq_context: *mut c_void,
}

/// A queue pair.
#[repr(C)]
#[derive(Debug)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub handle: u32,
    pub qp_num: u32,
}

// ---- what we allocate ---------------------------------------------------------------------------

/// What an adapter can do.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub limits: [c_int; 22],
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// How a port is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PortAttr {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// An address of a port.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub struct GidEntry {
    pub gid: [u8; 16],
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// How much a queue pair has room for.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// What a queue pair begins as.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub cap: QpCap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

/// The way to a peer, as far as IP knows it.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub struct GlobalRoute {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// The way to a peer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AhAttr {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// What a queue pair becomes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct QpAttr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// A piece of registered memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// Work for the sending half of a queue pair. Of its unions, the members that a WRITE needs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut Self,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    pub imm_data: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub rest: [u64; 9],
}

/// Room for a message.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut Self,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// A completion. Only `wr_id`, `status`, `qp_num` and `vendor_err` mean something if it failed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// Something that happened to a queue pair, a completion queue, a port or the whole adapter.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AsyncEvent {
    pub element: AsyncElement,
    pub event_type: c_uint,
}

/// What it happened to; which member it is, the event's type says.
#[repr(C)]
#[derive(Clone, Copy)]
pub union AsyncElement {
    pub cq: *mut Cq,
    pub qp: *mut Qp,
    pub port_num: c_int,
}

// ---- numbers ------------------------------------------------------------------------------------

/// `ibv_gid_type`
pub const GID_TYPE_ROCE_V1: u32 = 1;
pub const GID_TYPE_ROCE_V2: u32 = 2;

/// `ibv_port_state`
pub const PORT_ACTIVE: c_uint = 4;
/// Ethernet, which RoCE runs over.
pub const LINK_LAYER_ETHERNET: u8 = 2;

/// `ibv_event_type`
pub mod event {
    use std::ffi::c_uint;
    pub const CQ_ERR: c_uint = 0;
    pub const QP_FATAL: c_uint = 1;
    pub const QP_REQ_ERR: c_uint = 2;
    pub const QP_ACCESS_ERR: c_uint = 3;
    pub const DEVICE_FATAL: c_uint = 8;
    pub const PORT_ACTIVE: c_uint = 9;
    pub const PORT_ERR: c_uint = 10;
    pub const GID_CHANGE: c_uint = 18;
}

/// `ibv_wc_status`
pub mod status {
    use std::ffi::c_uint;
    pub const SUCCESS: c_uint = 0;
    pub const LOC_LEN_ERR: c_uint = 1;
    pub const WR_FLUSH_ERR: c_uint = 5;
    pub const REM_INV_REQ_ERR: c_uint = 9;
    pub const REM_ACCESS_ERR: c_uint = 10;
    pub const REM_OP_ERR: c_uint = 11;
    pub const RETRY_EXC_ERR: c_uint = 12;
    pub const RNR_RETRY_EXC_ERR: c_uint = 13;
    pub const RESP_TIMEOUT_ERR: c_uint = 20;
}

/// `ibv_access_flags`
pub const ACCESS_LOCAL_WRITE: c_int = 1;
pub const ACCESS_REMOTE_WRITE: c_int = 1 << 1;

/// `IBV_QPT_RC`: a reliable connection.
pub const QPT_RC: c_uint = 2;

/// `ibv_qp_state`
pub mod state {
    use std::ffi::c_uint;
    pub const INIT: c_uint = 1;
    pub const RTR: c_uint = 2;
    pub const RTS: c_uint = 3;
    pub const ERR: c_uint = 6;
}

/// `ibv_qp_attr_mask`: which fields of a [`QpAttr`] are meant.
pub mod mask {
    use std::ffi::c_int;
    pub const STATE: c_int = 1 << 0;
    pub const ACCESS_FLAGS: c_int = 1 << 3;
    pub const PKEY_INDEX: c_int = 1 << 4;
    pub const PORT: c_int = 1 << 5;
    pub const AV: c_int = 1 << 7;
    pub const PATH_MTU: c_int = 1 << 8;
    pub const TIMEOUT: c_int = 1 << 9;
    pub const RETRY_CNT: c_int = 1 << 10;
    pub const RNR_RETRY: c_int = 1 << 11;
    pub const RQ_PSN: c_int = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub const MIN_RNR_TIMER: c_int = 1 << 15;
    pub const SQ_PSN: c_int = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub const DEST_QPN: c_int = 1 << 20;
}

/// `ibv_wr_opcode`
pub const WR_RDMA_WRITE: c_uint = 0;
pub const WR_SEND: c_uint = 2;

/// `ibv_send_flags`
pub const SEND_SIGNALED: c_uint = 1 << 1;
pub const SEND_SOLICITED: c_uint = 1 << 2;
pub const SEND_INLINE: c_uint = 1 << 3;
