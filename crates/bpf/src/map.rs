//! Maps that programs keep things in, as the object file defines them.
//!
//! A definition is five words: kind, lengths of a key and of a value, number of entries, flags.
//!
//! *Source*: `struct bpf_map_def` of libbpf, `enum bpf_map_type` of `linux/bpf.h`.

/// A map to be made when the programs are loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapDefinition {
    pub(crate) name: &'static str,
    pub(crate) kind: MapKind,
    /// Bytes of a key.
    pub(crate) key_len: u32,
    /// Bytes of a value.
    pub(crate) value_len: u32,
    pub(crate) entries_max: u32,
    /// Entries take memory when they are made, and not all of them in advance.
    pub(crate) on_demand: bool,
}

/// Kinds of maps (`enum bpf_map_type`).
#[derive(Clone, Copy, Debug)]
pub(crate) enum MapKind {
    Hash = 1,
    Array = 2,
    /// Programs that others go on in.
    ProgArray = 3,
    PerCpuHash = 5,
    PerCpuArray = 6,
    /// A hash whose oldest entries make room for new ones.
    LruHash = 9,
    /// Sockets by number; one that is closed leaves by itself.
    SockMap = 15,
    SockHash = 18,
    /// A value for each socket, kept with the socket. One that is accepted gets a copy of
    /// its listener's.
    SkStorage = 24,
    /// Records for a reader; `entries_max` are its bytes, a power of two of pages.
    RingBuf = 27,
}

impl MapDefinition {
    /// Its flags (`BPF_F_*`).
    pub(crate) fn flags(&self) -> u32 {
        /// `BPF_F_NO_PREALLOC`.
        const ON_DEMAND: u32 = 1;
        /// `BPF_F_CLONE`.
        const COPY_TO_ACCEPTED: u32 = 1 << 9;
        let on_demand = if self.on_demand { ON_DEMAND } else { 0 };
        match self.kind {
            MapKind::SkStorage => on_demand | COPY_TO_ACCEPTED,
            _ => on_demand,
        }
    }

    /// As it stands in the section `maps`.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let flags = self.flags();
        let fields = [self.kind as u32, self.key_len, self.value_len, self.entries_max, flags];
        fields.iter().flat_map(|field| field.to_ne_bytes()).collect()
    }
}
