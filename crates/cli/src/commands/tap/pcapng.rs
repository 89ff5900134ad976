//! A file of packets: pcapng, with nanoseconds, of IP packets without a link layer.

use std::borrow::Cow;
use std::io::{self, Write};

use pcap_parser::{
    EnhancedPacketBlock, InterfaceDescriptionBlock, Linktype, OptionCode, PcapNGOption,
    SectionHeaderBlock, ToVec,
};

/// A file that is being written.
#[derive(Debug)]
pub(super) struct Capture<W> {
    out: W,
    packets: u64,
}

/// Powers of ten of a second: nanoseconds.
const RESOLUTION: u8 = 9;
/// The length of a section is not known before it ends.
const LENGTH_UNKNOWN: i64 = -1;
/// Longest text of an option.
const TEXT_MAX: usize = u16::MAX as usize;

impl<W: Write> Capture<W> {
    /// Writes what comes before the packets.
    pub(super) fn begin(mut out: W) -> io::Result<Self> {
        let program = concat!("sidestep ", env!("CARGO_PKG_VERSION"));
        let mut header = SectionHeaderBlock {
            block_type: 0,
            block_len1: 0,
            bom: 0,
            major_version: 1,
            minor_version: 0,
            section_len: LENGTH_UNKNOWN,
            options: vec![text(OptionCode::ShbUserAppl, program)],
            block_len2: 0,
        };
        let mut interface = InterfaceDescriptionBlock {
            block_type: 0,
            block_len1: 0,
            linktype: Linktype::RAW,
            reserved: 0,
            snaplen: 0,
            options: vec![text(OptionCode::IfName, "sidestep")],
            block_len2: 0,
            if_tsresol: RESOLUTION,
            if_tsoffset: 0,
        };
        put(&mut out, &mut header)?;
        put(&mut out, &mut interface)?;
        Ok(Self { out, packets: 0 })
    }

    /// Appends a packet that was seen so many nanoseconds after 1970.
    pub(super) fn packet(&mut self, at: u64, bytes: &[u8], comments: &[String]) -> io::Result<()> {
        let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let comments = comments.iter().map(|comment| text(OptionCode::Comment, comment));
        let mut block = EnhancedPacketBlock {
            block_type: 0,
            block_len1: 0,
            if_id: 0,
            ts_high: (at >> 32) as u32,
            ts_low: at as u32,
            caplen: len,
            origlen: len,
            data: bytes,
            options: comments.collect(),
            block_len2: 0,
        };
        put(&mut self.out, &mut block)?;
        self.packets += 1;
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    pub(super) fn packets(&self) -> u64 {
        self.packets
    }
}

fn put(out: &mut impl Write, block: &mut impl ToVec) -> io::Result<()> {
    let bytes = block.to_vec().map_err(|error| io::Error::other(format!("{error:?}")))?;
    out.write_all(&bytes)
}

fn text(code: OptionCode, text: &str) -> PcapNGOption<'_> {
    let is_end = |at: &usize| text.is_char_boundary(*at);
    let end = (0..=text.len().min(TEXT_MAX)).rev().find(is_end).unwrap_or(0);
    let value = Cow::Borrowed(&text.as_bytes()[..end]);
    PcapNGOption { code, len: end as u16, value }
}
