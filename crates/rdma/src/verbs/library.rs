//! libibverbs as a table of functions, found when the program runs.
//!
//! Nothing is linked: a program that uses RDMA adapters if there are any starts where the library is
//! not installed. It is opened when adapters are asked for, and never closed again: drivers that
//! it has loaded do not expect that.
//!
//! Symbols are asked for with their versions, which name the ABI: `ibv_open_device` of
//! `IBVERBS_1.0` has other structures behind it than that of `IBVERBS_1.1`. That is why it is
//! `dlvsym` of libc here, and no crate around `dlsym`.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, OnceLock};

use super::abi::{
    AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, GidEntry, Mr, Pd, PortAttr, Qp,
    QpAttr, QpInitAttr,
};

/// The library's name; the number is that of its ABI.
const SONAME: &CStr = c"libibverbs.so.1";

/// Why there are no adapters to be had from libibverbs.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unavailable {
    /// It is not there, or cannot be loaded.
    #[error(
        "RDMA adapters need libibverbs.so.1 and its drivers ({0}); install the packages \
         libibverbs1 and ibverbs-providers (Debian, Ubuntu), or libibverbs (Fedora, RHEL, SUSE)"
    )]
    NotInstalled(String),
    /// It is too old.
    #[error("libibverbs.so.1 has no {0}; rdma-core 34 or later is needed")]
    TooOld(&'static str),
}

/// Declares the table and how it is filled: a field, the symbol, its version, its type.
macro_rules! table {
    ($($field:ident, $symbol:literal, $version:literal: ($($arg:ty),*) -> $answer:ty;)*) => {
        /// Functions of libibverbs, each as its manual page has it.
        #[derive(Clone, Debug)]
        #[expect(missing_docs, reason = "the manual pages of libibverbs are the documentation")]
        pub struct Verbs {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> $answer,)*
        }

        impl Verbs {
            /// # Safety
            ///
            /// The handle is libibverbs'.
            unsafe fn resolve(library: *mut c_void) -> Result<Self, Unavailable> {
                Ok(Self {
                    $($field: {
                        // SAFETY: two strings that end with 0, and an open library.
                        let symbol = unsafe {
                            libc::dlvsym(library, $symbol.as_ptr(), $version.as_ptr())
                        };
                        if symbol.is_null() {
                            return Err(Unavailable::TooOld(name_of($symbol)));
                        }
                        // SAFETY: the version says that the function has this type.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) -> $answer,
                            >(symbol)
                        }
                    },)*
                })
            }
        }
    };
}

table! {
    get_device_list, c"ibv_get_device_list", c"IBVERBS_1.1": (*mut c_int) -> *mut *mut Device;
    free_device_list, c"ibv_free_device_list", c"IBVERBS_1.1": (*mut *mut Device) -> ();
    get_device_name, c"ibv_get_device_name", c"IBVERBS_1.1": (*mut Device) -> *const c_char;
    open_device, c"ibv_open_device", c"IBVERBS_1.1": (*mut Device) -> *mut Context;
    close_device, c"ibv_close_device", c"IBVERBS_1.1": (*mut Context) -> c_int;
    query_device, c"ibv_query_device", c"IBVERBS_1.1": (*mut Context, *mut DeviceAttr) -> c_int;
    query_port, c"ibv_query_port", c"IBVERBS_1.1": (*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid_table, c"_ibv_query_gid_table", c"IBVERBS_1.11":
        (*mut Context, *mut GidEntry, usize, u32, usize) -> isize;
    get_async_event, c"ibv_get_async_event", c"IBVERBS_1.1":
        (*mut Context, *mut AsyncEvent) -> c_int;
    ack_async_event, c"ibv_ack_async_event", c"IBVERBS_1.1": (*mut AsyncEvent) -> ();
    alloc_pd, c"ibv_alloc_pd", c"IBVERBS_1.1": (*mut Context) -> *mut Pd;
    dealloc_pd, c"ibv_dealloc_pd", c"IBVERBS_1.1": (*mut Pd) -> c_int;
    reg_mr_iova, c"ibv_reg_mr_iova", c"IBVERBS_1.7":
        (*mut Pd, *mut c_void, usize, u64, c_int) -> *mut Mr;
    dereg_mr, c"ibv_dereg_mr", c"IBVERBS_1.1": (*mut Mr) -> c_int;
    create_comp_channel, c"ibv_create_comp_channel", c"IBVERBS_1.0":
        (*mut Context) -> *mut CompChannel;
    destroy_comp_channel, c"ibv_destroy_comp_channel", c"IBVERBS_1.0":
        (*mut CompChannel) -> c_int;
    create_cq, c"ibv_create_cq", c"IBVERBS_1.1":
        (*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq, c"ibv_destroy_cq", c"IBVERBS_1.1": (*mut Cq) -> c_int;
    get_cq_event, c"ibv_get_cq_event", c"IBVERBS_1.1":
        (*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events, c"ibv_ack_cq_events", c"IBVERBS_1.1": (*mut Cq, c_uint) -> ();
    create_qp, c"ibv_create_qp", c"IBVERBS_1.1": (*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp, c"ibv_modify_qp", c"IBVERBS_1.1": (*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp, c"ibv_destroy_qp", c"IBVERBS_1.1": (*mut Qp) -> c_int;
}

impl Verbs {
    /// The library of this machine, the same one for all who ask.
    ///
    /// # Errors
    ///
    /// [`Unavailable`]; its text says what to install.
    pub fn load() -> Result<Arc<Self>, Unavailable> {
        static LIBRARY: OnceLock<Result<Arc<Verbs>, Unavailable>> = OnceLock::new();
        LIBRARY.get_or_init(|| Self::open(SONAME).map(Arc::new)).clone()
    }

    fn open(name: &CStr) -> Result<Self, Unavailable> {
        // SAFETY: a string that ends with 0. Constructors of this library and of those it needs run;
        // they are the distribution's.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(Unavailable::NotInstalled(last_error()));
        }
        // SAFETY: opened under this name.
        unsafe { Self::resolve(library) }
    }
}

/// Why the last call of the dynamic linker has failed.
fn last_error() -> String {
    // SAFETY: no arguments.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: not null, so a string that stays until the next call of this thread.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn name_of(symbol: &'static CStr) -> &'static str {
    symbol.to_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_installed_is_told_with_the_packages() {
        let error = Verbs::open(c"libibverbs.so.0.is.not.there").unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Unavailable::NotInstalled(_)));
        for part in ["is.not.there", "libibverbs1", "ibverbs-providers"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn the_library_of_this_machine_has_everything() {
        match Verbs::load() {
            Ok(verbs) => assert!(Arc::ptr_eq(&verbs, &Verbs::load().unwrap())),
            Err(Unavailable::NotInstalled(reason)) => println!("skipped: {reason}"),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_library_without_the_symbols_is_too_old() {
        assert!(matches!(
            Verbs::open(c"libc.so.6"),
            Err(Unavailable::TooOld("ibv_get_device_list"))
        ));
    }
}
