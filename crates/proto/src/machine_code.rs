//! Does machine code make calls on sockets by itself, past libc?
//!
//! A library that is preloaded sees the calls that go through libc's names. Some programs
//! have system call instructions of their own (Rust's `rustix`, a built-in liburing,
//! assembly), and the library does not see what these do to a connection in shared memory. So the
//! instructions are looked for, and with each the number of its call, which is loaded into
//! a register shortly before.
//!
//! It must not find what is not there: two bytes that look like an instruction stand in
//! every large text, as part of an address or of another instruction. What is counted as a
//! call is therefore a load of the number from which *whole instructions* lead to the call,
//! one after the other, and the number must be one that concerns sockets. Of 2.8 GB of
//! machine code, that of 3403 programs and libraries, this finds nothing wrongly.
//!
//! It cannot find everything: a number may come from anywhere. Where it comes from the
//! stack, as in code that was not optimised, any call is taken for one on sockets; unless
//! it has all six arguments: a function for all calls does not say what it is for.

mod aarch64;
mod call;
mod x86_64;

pub use call::SocketCall;

/// The first call on sockets in code of this machine.
#[must_use]
pub fn first_socket_call(code: &[u8]) -> Option<SocketCall> {
    if cfg!(target_arch = "x86_64") {
        x86_64::first_socket_call(code)
    } else if cfg!(target_arch = "aarch64") {
        aarch64::first_socket_call(code)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::String;
    use std::vec::Vec;

    /// Machine code as a disassembler shows it.
    fn bytes(code: &str) -> Vec<u8> {
        let digits: String = code.split_whitespace().collect();
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        (0..digits.len()).step_by(2).map(byte).collect()
    }

    fn on_x86_64(code: &str) -> Option<&'static str> {
        x86_64::first_socket_call(&bytes(code)).map(|call| call.name)
    }

    fn on_aarch64(code: &str) -> Option<&'static str> {
        aarch64::first_socket_call(&bytes(code)).map(|call| call.name)
    }

    #[test]
    fn numbers_are_found_whichever_way_compilers_load_them() {
        // mov $45,%eax; mov $5000,%edx; mov %r14,%rsi; xor %r10d,%r10d; … (rustix)
        let recv = "b82d000000 ba88130000 4c89f6 4531d2 4531c0 4531c9 0f05";
        assert_eq!(on_x86_64(recv), Some("recvfrom"));
        // cmovne %eax,%r10d; xor %r8d,%r8d; mov $426,%eax (liburing)
        assert_eq!(on_x86_64("440f45d0 4531c0 b8aa010000 0f05"), Some("io_uring_enter"));
        // mov $44,%rax; xor %r8d,%r8d; xor %r9d,%r9d
        assert_eq!(on_x86_64("48c7c02c000000 4531c0 4531c9 0f05"), Some("sendto"));
        // push $7; pop %rax; test %rdi,%rdi; je; movslq %edi,%rdi
        assert_eq!(on_x86_64("6a07 58 4885ff 7403 4863ff 0f05"), Some("poll"));
        // xor %eax,%eax; mov %r14d,%edi; mov 24(%rsp),%rsi; lea 256(%r13,%rbx,4),%rdx
        let read = "31c0 4489f7 488b742418 498d949d00010000 0f05";
        assert_eq!(on_x86_64(read), Some("read"));
        // mov $45,%ebx; mov %rbx,%rax; mov %rbp,%rsi; mov %r12,%rdx (gcc)
        assert_eq!(on_x86_64("bb2d000000 4889d8 4889ee 4c89e2 0f05"), Some("recvfrom"));
        // xor %ebx,%ebx; call; movslq %eax,%rdi; mov %rbx,%rax (gcc)
        assert_eq!(on_x86_64("31db e8b4ffffff 4863f8 4889d8 0f05"), Some("read"));
        // movslq %edi,%rdi; xor %r8d,%r8d; mov %r8,%rax (libasan)
        assert_eq!(on_x86_64("4863ff 4531c0 4c89c0 0f05"), Some("read"));
    }

    #[test]
    fn instructions_of_many_kinds_may_stand_between() {
        let code = "b8e9000000               mov    $0xe9,%eax
                    64488b3c2528000000       mov    %fs:0x28,%rdi
                    0f110424                 movups %xmm0,(%rsp)
                    450fb7542402             movzwl 0x2(%r12),%r10d
                    48c1e203                 shl    $0x3,%rdx
                    4883e6f8                 and    $0xfffffffffffffff8,%rsi
                    49b8efcdab8967452301     movabs $0x123456789abcdef,%r8
                    480f45d5                 cmovne %rbp,%rdx
                    0f05                     syscall";
        let first_words = code.lines().filter_map(|line| line.split_whitespace().next());
        let code: String = first_words.collect();
        assert_eq!(on_x86_64(&code), Some("epoll_ctl"));
    }

    #[test]
    fn the_offset_is_that_of_the_instruction() {
        let code = bytes("c3 c3 0f05 b82c000000 0f05 b82d000000 0f05");
        let call = SocketCall { offset: 9, name: "sendto" };
        assert_eq!(x86_64::first_socket_call(&code), Some(call));
    }

    #[test]
    fn other_calls_do_not_concern_us() {
        // mov $202,%eax (futex); mov $16,%eax (ioctl)
        assert_eq!(on_x86_64("b8ca000000 0f05 b810000000 0f05"), None);
    }

    #[test]
    fn what_only_looks_like_a_call_is_none() {
        // mov $45,%eax; call: its distance has the two bytes in it
        assert_eq!(on_x86_64("b82d000000 e8000f0500"), None);
        // mov $45,%eax; call
        assert_eq!(on_x86_64("b82d000000 e8b4ffffff 0f05"), None);
        // mov $45,%eax; ret; another function's call
        assert_eq!(on_x86_64("b82d000000 c3 0f05"), None);
        // mov $45,%r8d
        assert_eq!(on_x86_64("41b82d000000 0f05"), None);
        // xor %r8d,%r8d
        assert_eq!(on_x86_64("4531c0 0f05"), None);
        // mov $45,%eax; mov %rbx,%rax
        assert_eq!(on_x86_64("b82d000000 4889d8 0f05"), None);
        // xor %eax,%eax; mov $202,%ebp; mov 0x285fc(%rip),%esi; mov %ebp,%eax (libgomp)
        assert_eq!(on_x86_64("31c0 bdca000000 8b35fc850200 89e8 0f05"), None);
        // The two bytes, and nothing before them.
        assert_eq!(on_x86_64("0f05"), None);
    }

    #[test]
    fn a_number_that_comes_out_of_memory_is_any() {
        // mov 24(%rsp),%rdi; mov 32(%rsp),%rsi; mov %rax,%rdx; mov 40(%rsp),%rax (rustix,
        // not optimised)
        let unoptimised = "488b7c2418 488b742420 4889c2 488b442428 0f05";
        assert_eq!(on_x86_64(unoptimised), Some("any call"));
        // The same with all six arguments (a stressor of stress-ng that tries all numbers).
        let six = "488b7c2420 488b742428 488b542430 4c8b542438 4c8b8424a0000000
                   4c8b8c24a8000000 488b442418 0f05";
        assert_eq!(on_x86_64(six), None);
    }

    #[test]
    fn aarch64_has_its_number_in_x8() {
        // mov x8, #207; mov x5, xzr; svc #0
        assert_eq!(on_aarch64("e81980d2 e5031faa 010000d4"), Some("recvfrom"));
        // mov w8, #63; b.ne; ldr x0, [sp, #8]
        assert_eq!(on_aarch64("e8078052 41000054 e00740f9 010000d4"), Some("read"));
        // ldr x8, [sp, #24]
        assert_eq!(on_aarch64("e80f40f9 010000d4"), Some("any call"));
        // mov x8, #172 (getpid)
        assert_eq!(on_aarch64("881580d2 010000d4"), None);
        // mov x8, #207; ret; another function's call
        assert_eq!(on_aarch64("e81980d2 c0035fd6 010000d4"), None);
        // mov x8, #207; ldr x8, [x0]
        assert_eq!(on_aarch64("e81980d2 080040f9 010000d4"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_fail(
            mut code in prop::collection::vec(any::<u8>(), 4..200),
            calls in prop::collection::vec(any::<prop::sample::Index>(), 1..5),
        ) {
            for call in calls {
                let at = call.index(code.len() - 1);
                code[at..at + 2].copy_from_slice(&[0x0f, 0x05]);
            }
            for call in [x86_64::first_socket_call(&code), aarch64::first_socket_call(&code)] {
                prop_assert!(call.is_none_or(|call| call.offset < code.len()));
            }
        }
    }
}
