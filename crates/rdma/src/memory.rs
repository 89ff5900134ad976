//! Memory that peers write into, and the keys by which they may.
//!
//! A receive buffer (RMB) is registered once for each link that leads to it. The registration is a
//! key and an address, both chosen at random: neither tells where the memory is in this process, and
//! neither fits on another link. What a WRITE asks for is checked as a whole when it begins, and the
//! registration again with each of its packets, so it can be withdrawn in the middle.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use rand::RngExt;
use rand::rngs::StdRng;
use sidestep_wire::{QpNumber, Rkey, RmbAddress};

/// Memory that other processes, or this one, read and write at the same time.
#[derive(Debug)]
pub struct Shared {
    base: *mut u8,
    len: usize,
    /// It was allocated here, and ends with this value.
    is_ours: bool,
}

// SAFETY: the bytes are only ever copied in and out; what is copied while another side
// writes is any mixture, as with hardware.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// The `len` bytes at `base`.
    ///
    /// # Safety
    ///
    /// They stay mapped, readable and (for what is registered) writable as long as this value
    /// lives, and Rust code refers to them by raw pointers only.
    #[must_use]
    pub const unsafe fn new(base: *mut u8, len: usize) -> Self {
        Self { base, len, is_ours: false }
    }

    /// So many bytes of this process, all 0.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let base = Box::into_raw(vec![0_u8; len].into_boxed_slice()).cast::<u8>();
        Self { base, len, is_ours: true }
    }

    /// Bytes in it.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it is in this process.
    pub(crate) const fn base(&self) -> *mut u8 {
        self.base
    }

    fn has(&self, at: usize, len: usize) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.len)
    }

    /// Copies bytes in, which lie elsewhere. False, and nothing is touched, if they do not fit.
    #[must_use]
    pub fn copy_in<'a>(&self, at: usize, bytes: impl Into<Stretch<'a>>) -> bool {
        let Stretch { base, len, .. } = bytes.into();
        let fits = self.has(at, len);
        if fits {
            // SAFETY: inside, as just checked, and they can be read as long as the stretch lives; two
            // stretches of one memory are copied as if by way of a third.
            unsafe { self.base.add(at).copy_from(base, len) };
        }
        fits
    }

    /// So many bytes from a place on. `None`: there are not so many.
    #[must_use]
    pub fn stretch(&self, at: usize, len: usize) -> Option<Stretch<'_>> {
        let base = self.base.wrapping_add(at);
        self.has(at, len).then_some(Stretch { base, len, of: PhantomData })
    }

    /// Makes all of it 0.
    pub fn clear(&self) {
        // SAFETY: all of it, which stays mapped as long as this value lives.
        unsafe { self.base.write_bytes(0, self.len) };
    }

    /// Copies bytes out. False, and nothing is touched, if there are not so many.
    #[must_use]
    pub fn copy_out(&self, at: usize, bytes: &mut [u8]) -> bool {
        let fits = self.has(at, bytes.len());
        if fits {
            // SAFETY: as in `copy_in`.
            unsafe { self.base.add(at).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        }
        fits
    }
}

/// Bytes to be copied from, which another process may change meanwhile: there is an address, and no
/// reference.
#[derive(Clone, Copy, Debug)]
pub struct Stretch<'a> {
    base: *const u8,
    len: usize,
    of: PhantomData<&'a [u8]>,
}

impl Stretch<'_> {
    /// No byte.
    pub const NONE: Self = Self { base: std::ptr::null(), len: 0, of: PhantomData };

    /// The `len` bytes at `base`.
    ///
    /// # Safety
    ///
    /// They can be read for `'a`.
    #[must_use]
    pub const unsafe fn new(base: *const u8, len: usize) -> Self {
        Self { base, len, of: PhantomData }
    }

    /// Where they are in this process.
    #[must_use]
    pub const fn base(self) -> *const u8 {
        self.base
    }

    /// How many they are.
    #[must_use]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The first `at` of them, or all if they are not so many, and the rest.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        let at = at.min(self.len);
        let behind = Self { base: self.base.wrapping_add(at), len: self.len - at, of: PhantomData };
        (Self { len: at, ..self }, behind)
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for Stretch<'a> {
    fn from(bytes: &'a T) -> Self {
        let bytes = bytes.as_ref();
        Self { base: bytes.as_ptr(), len: bytes.len(), of: PhantomData }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_ours {
            let bytes = std::ptr::slice_from_raw_parts_mut(self.base, self.len);
            // SAFETY: `zeroed` has it from a box of just these bytes, and nothing else frees it.
            drop(unsafe { Box::from_raw(bytes) });
        }
    }
}

/// What a peer is told of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Registration {
    /// The key; never 0.
    pub rkey: Rkey,
    /// Where the memory begins, in an address space of its own.
    pub address: RmbAddress,
}

#[derive(Debug)]
struct Region {
    memory: Arc<Shared>,
    address: u64,
    /// The only QP over which it is reached.
    qp: QpNumber,
}

/// All registrations of an adapter.
#[derive(Debug)]
pub struct Regions {
    by_key: BTreeMap<Rkey, Arc<Region>>,
    random: StdRng,
}

/// Memory that a WRITE has been allowed to write into.
#[derive(Clone, Debug)]
pub struct Place {
    /// Gone when the registration is.
    region: Weak<Region>,
    at: usize,
}

/// A WRITE that is not allowed. It says no more, and neither does the answer: a peer that tries keys is
/// not to learn which were nearly right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// Addresses are multiples of it, and of 48 bits as those of real memory are.
pub(crate) const PAGE_MASK: u64 = 0x0000_FFFF_FFFF_F000;

impl Regions {
    /// None, whose keys and addresses will be drawn from this source.
    #[must_use]
    pub const fn new(random: StdRng) -> Self {
        Self { by_key: BTreeMap::new(), random }
    }

    /// Lets the peer of a QP write into memory.
    pub fn register(&mut self, memory: Arc<Shared>, qp: QpNumber) -> Registration {
        let rkey = loop {
            let rkey = Rkey(self.random.random());
            if rkey != Rkey(0) && !self.by_key.contains_key(&rkey) {
                break rkey;
            }
        };
        let address = self.random.random::<u64>() & PAGE_MASK;
        self.by_key.insert(rkey, Arc::new(Region { memory, address, qp }));
        Registration { rkey, address: RmbAddress(address) }
    }

    /// The same by a key and an address that the peer has been told. False: the key is another one's here.
    pub fn register_as(&mut self, told: Registration, memory: Arc<Shared>, qp: QpNumber) -> bool {
        let Entry::Vacant(place) = self.by_key.entry(told.rkey) else { return false };
        place.insert(Arc::new(Region { memory, address: told.address.0, qp }));
        true
    }

    /// No peer writes there by this key any more. False: there was none.
    pub fn deregister(&mut self, rkey: Rkey) -> bool {
        self.by_key.remove(&rkey).is_some()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether no peer may write anywhere.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Where a WRITE over a QP goes, all `len` bytes of it.
    ///
    /// # Errors
    ///
    /// [`Refused`]: an unknown key, another QP's, or a range that is not all inside.
    pub fn place(
        &self,
        qp: QpNumber,
        rkey: Rkey,
        address: RmbAddress,
        len: u32,
    ) -> Result<Place, Refused> {
        let region = self.by_key.get(&rkey).filter(|region| region.qp == qp).ok_or(Refused)?;
        let at = address.0.checked_sub(region.address).ok_or(Refused)?;
        let at = usize::try_from(at).map_err(|_| Refused)?;
        let len = usize::try_from(len).map_err(|_| Refused)?;
        match region.memory.has(at, len) {
            true => Ok(Place { region: Arc::downgrade(region), at }),
            false => Err(Refused),
        }
    }
}

impl Place {
    /// Writes a part of the message, so many bytes behind its beginning.
    ///
    /// # Errors
    ///
    /// [`Refused`]: the registration was withdrawn meanwhile.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Refused> {
        let region = self.region.upgrade().ok_or(Refused)?;
        let at = self.at.checked_add(offset).ok_or(Refused)?;
        if region.memory.copy_in(at, bytes) { Ok(()) } else { Err(Refused) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Memory that is never given back.
    pub(crate) fn memory(len: usize) -> Arc<Shared> {
        let bytes = Box::leak(vec![0; len].into_boxed_slice());
        // SAFETY: leaked, and not used otherwise.
        Arc::new(unsafe { Shared::new(bytes.as_mut_ptr(), len) })
    }

    #[test]
    fn memory_of_ours_begins_as_nothing_and_becomes_nothing_again() {
        let memory = Shared::zeroed(5);
        let mut bytes = [9; 5];
        assert!(memory.copy_in(3, &[1, 2]) && memory.copy_out(0, &mut bytes));
        assert_eq!(bytes, [0, 0, 0, 1, 2]);
        memory.clear();
        assert!(memory.copy_out(0, &mut bytes) && bytes == [0; 5]);
        assert!(Shared::zeroed(0).is_empty());
    }

    #[test]
    fn a_stretch_is_copied_between_memories_and_within_one() {
        let memory = Shared::zeroed(6);
        assert!(memory.copy_in(0, b"abcdef"));
        let (head, tail) = memory.stretch(1, 4).unwrap().split_at(1);
        assert_eq!((head.len(), tail.len(), tail.split_at(9).0.len()), (1, 3, 3));
        assert!(memory.copy_in(3, tail) && !memory.copy_in(4, tail));
        let mut bytes = [0; 6];
        assert!(memory.copy_out(0, &mut bytes));
        assert_eq!(&bytes, b"abccde");
        assert!(memory.stretch(3, 3).is_some() && memory.stretch(4, 3).is_none());
        assert!(memory.stretch(usize::MAX, 2).is_none());
    }

    const QP: QpNumber = QpNumber([0, 0, 2]);
    const OTHER_QP: QpNumber = QpNumber([0, 0, 3]);

    #[test]
    fn only_what_was_registered_is_reached() {
        let mut regions = Regions::new(rand::make_rng());
        let memory = memory(100);
        let Registration { rkey, address } = regions.register(Arc::clone(&memory), QP);
        let at = |offset: u64| RmbAddress(address.0.wrapping_add(offset));
        let place = regions.place(QP, rkey, at(90), 10).unwrap();
        assert_eq!(place.write(0, &[1; 10]), Ok(()));
        assert_eq!(place.write(1, &[1; 10]), Err(Refused), "beyond the end");
        for (qp, key, offset, len) in [
            (OTHER_QP, rkey, 0, 1),
            (QP, Rkey(rkey.0 ^ 1), 0, 1),
            (QP, Rkey(0), 0, 1),
            (QP, rkey, 91, 10),
            (QP, rkey, 0, 101),
            (QP, rkey, u64::MAX, 1),
            (QP, rkey, 101, 0),
            (QP, rkey, 1 << 63, u32::MAX),
        ] {
            assert!(regions.place(qp, key, at(offset), len).is_err(), "{offset} {len}");
        }
        let mut bytes = [0; 100];
        assert!(memory.copy_out(0, &mut bytes));
        assert_eq!((&bytes[..90], &bytes[90..]), (&[0; 90][..], &[1; 10][..]));
    }

    #[test]
    fn a_key_that_was_told_elsewhere_is_taken_if_it_is_nobodys() {
        let mut regions = Regions::new(rand::make_rng());
        let told = regions.register(memory(10), QP);
        assert!(!regions.register_as(told, memory(10), OTHER_QP), "it is that of another");
        assert!(regions.place(QP, told.rkey, told.address, 10).is_ok());
        let mut others = Regions::new(rand::make_rng());
        assert!(others.register_as(told, memory(10), QP));
        assert!(others.place(QP, told.rkey, told.address, 10).is_ok());
        assert!(others.place(OTHER_QP, told.rkey, told.address, 10).is_err());
    }

    #[test]
    fn a_withdrawn_registration_ends_what_has_begun() {
        let mut regions = Regions::new(rand::make_rng());
        let Registration { rkey, address } = regions.register(memory(10), QP);
        let place = regions.place(QP, rkey, address, 10).unwrap();
        assert!(regions.deregister(rkey) && !regions.deregister(rkey));
        assert_eq!(place.write(0, &[1]), Err(Refused));
        assert!(regions.place(QP, rkey, address, 1).is_err());
    }
}
