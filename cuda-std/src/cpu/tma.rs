//! TMA copies between global memory and shared memory, and accesses to the shared memory of other blocks of a
//! cluster.
use std::sync::{Mutex, PoisonError};

use super::cluster::{Cluster, FIRST_ADDRESS, Place, WINDOW};
use super::history::{By, SharedAccess};
use super::tensor_map::{Reduction, TensorMapShape};
use super::{Block, FaultKind, operate};
use crate::base::tensor_map::TensorMap;

/// TMA reductions of several blocks may access the same elements. This lock makes them atomic.
static REDUCTIONS: Mutex<()> = Mutex::new(());

/// An asynchronous copy that a thread has started.
pub(super) struct StartedCopy {
    /// The thread that started the copy: the rank of its block, and its index in this block.
    pub by: (u32, usize),
    /// The places in shared memory that the copy writes. If the copy goes from one block to another, the list
    /// also contains the place that it reads.
    pub to: Vec<Place>,
    pub work: CopyWork,
}

/// The bytes that an asynchronous copy has yet to move.
pub(super) enum CopyWork {
    /// A copy to shared memory.
    Load(Box<dyn FnOnce(&Cluster)>),
    /// A copy from shared memory to global memory.
    Store(StartedStore),
}

/// Writes the bytes that a copy has read to global memory.
type WriteBytes = Box<dyn FnOnce(&[u8])>;

/// A copy from shared memory to global memory. The copy first reads all its bytes, and writes them at a later
/// time.
pub(super) struct StartedStore {
    /// Agent and number of its bulk group.
    group: (u32, u32),
    from: *const u8,
    bytes: usize,
    /// The bytes, after they were read.
    read: Option<Vec<u8>>,
    write: WriteBytes,
}

impl StartedStore {
    fn read(&mut self) {
        // SAFETY: the slice covers the source bytes of the copy. The caller of `push_store` checked that
        // these bytes are in the shared memory of a block of this cluster.
        let copy = || unsafe { std::slice::from_raw_parts(self.from, self.bytes) }.to_vec();
        self.read.get_or_insert_with(copy);
    }

    fn write(mut self) {
        self.read();
        (self.write)(&self.read.unwrap_or_default());
    }
}

impl Cluster {
    /// Completes one pending copy. Returns false if no copy is pending.
    pub(super) fn complete_one(&self) -> bool {
        let mut pending = self.pending.borrow_mut();
        if pending.is_empty() {
            return false;
        }
        let draw = self.draws.get().wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        self.draws.set(draw);
        let at = (draw >> 33) as usize % pending.len();
        // Complete a copy that is chosen at random. A GPU may also complete copies in any order, even copies
        // of the same bulk group or mbarrier.
        let copy = pending.swap_remove(at);
        drop(pending);
        self.note_progress();
        match copy.work {
            CopyWork::Load(load) => load(self),
            CopyWork::Store(store) => store.write(),
        }
        true
    }

    /// Completes the reads of those bulk groups of the agent `agent` whose numbers are at most `last`. If
    /// `writes` is true, also completes their writes.
    pub(super) fn complete_groups(&self, agent: u32, last: u32, writes: bool) {
        let mut pending = self.pending.borrow_mut();
        for at in (0..pending.len()).rev() {
            let CopyWork::Store(store) = &mut pending[at].work else { continue };
            if store.group.0 != agent || store.group.1 > last {
                continue;
            }
            store.read();
            if writes && let CopyWork::Store(store) = pending.swap_remove(at).work {
                store.write();
            }
        }
    }

    /// Returns a fault if a copy to the shared memory of block `rank` is pending. All threads of the block
    /// have returned.
    pub(super) fn copies_at_exit(&self, rank: u32) -> Result<(), (usize, FaultKind)> {
        let pending = self.pending.borrow();
        let late = pending.iter().find(|copy| copy.to.iter().any(|place| place.rank == rank));
        match late {
            Some(StartedCopy { by: (from, thread), .. }) => {
                let thread = if *from == rank { *thread } else { 0 };
                Err((thread, FaultKind::EarlyExit { rank }))
            }
            None => Ok(()),
        }
    }
}

impl Block {
    /// Reads the tensor map at `map`.
    fn tensor_map(&self, map: u64, origin: &[i32]) -> TensorMapShape {
        // SAFETY: the code reads the `TensorMap` at `map`. The kernel passes the address of such a value, for
        // example of a kernel argument.
        let map = unsafe { &*std::ptr::with_exposed_provenance::<TensorMap>(map as usize) };
        match TensorMapShape::decode(map) {
            Some(shape) if shape.sizes.len() == origin.len() => shape,
            Some(shape) => {
                self.raise(FaultKind::TensorMap { dimensions: Some(shape.sizes.len()), used: origin.len() })
            }
            None => self.raise(FaultKind::TensorMap { dimensions: None, used: origin.len() }),
        }
    }

    /// Records a copy that will write `bytes` bytes at `to`. Until the copy completes, these bytes are 0xFF.
    /// The mbarrier at `barrier` counts the bytes.
    pub(super) fn start_copy(&self, to: Place, barrier: Place, bytes: u32, by: By) {
        let (agent, time) = self.count_copy(barrier, bytes);
        self.record(to, bytes, SharedAccess { agent, time, by }, true);
        self.cluster.remote.borrow_mut()[to.rank as usize].insert(agent, time);
        // SAFETY: the write covers the destination of the copy. `place` checked that these bytes are in the
        // shared memory of a running block.
        unsafe { self.pointer(to).write_bytes(0xFF, bytes as usize) };
    }

    /// Adds a copy to shared memory to the pending copies.
    pub(super) fn push_load(&self, to: Vec<Place>, load: Box<dyn FnOnce(&Cluster)>) {
        self.push(to, CopyWork::Load(load));
    }

    /// Adds a copy of `bytes` bytes of shared memory at `from` to the pending copies. [`Block::place`] has
    /// checked this range. When the copy writes, `write` gets the bytes that it has read.
    pub(super) fn push_store(&self, from: Place, bytes: u32, group: (u32, u32), write: WriteBytes) {
        let (from, bytes) = (self.pointer(from), bytes as usize);
        self.push(Vec::new(), CopyWork::Store(StartedStore { group, from, bytes, read: None, write }));
    }

    fn push(&self, to: Vec<Place>, work: CopyWork) {
        let by = (self.rank.get(), self.running.get());
        self.cluster.note_progress();
        self.cluster.pending.borrow_mut().push(StartedCopy { by, to, work });
    }

    /// Returns the ranks of the blocks in a multicast mask. Without a mask, returns the rank of this block.
    fn destinations(&self, blocks: Option<u16>) -> Vec<u32> {
        let Some(mask) = blocks else { return vec![self.rank.get()] };
        let count = self.cluster.blocks.get();
        if mask == 0 || u32::from(mask) >> count != 0 {
            self.raise(FaultKind::ClusterRank { rank: mask.checked_ilog2().unwrap_or(0), blocks: count });
        }
        (0..count).filter(|rank| mask >> rank & 1 == 1).collect()
    }
}

/// Starts a TMA copy of the box at `origin` of the tensor to the shared memory at `to`. If `blocks` is a mask
/// of block ranks, the copy writes to the same offset of each of these blocks. In each of them, the mbarrier
/// at the offset of `barrier` counts the bytes.
pub(crate) fn tensor_copy(to: u32, map: u64, origin: &[i32], barrier: u32, blocks: Option<u16>) {
    operate(|block| {
        let shape = block.tensor_map(map, origin);
        let bytes = shape.bytes();
        let mut places = Vec::new();
        for rank in block.destinations(blocks) {
            let at = |address: u32| (rank + 1) * WINDOW + address % WINDOW;
            let to = block.place(at(to), bytes, 128);
            let barrier = block.place(at(barrier), 8, 8);
            block.start_copy(to, barrier, bytes, By::Copy(Some(shape.swizzle)));
            places.push((to, barrier));
        }
        let origin = origin.to_vec();
        let to = places.iter().map(|&(to, _)| to).collect();
        let run = move |cluster: &Cluster| {
            for (to, barrier) in places {
                // SAFETY: `load_tile` reads the tensor and writes shared memory at `to`. The kernel
                // guarantees that the tensor is readable, and `place` checked the destination.
                unsafe { load_tile(&shape, &origin, cluster.block(to.rank).shared_base(), to.offset) };
                cluster.complete_bytes(barrier, bytes);
            }
        };
        block.push_load(to, Box::new(run));
    });
}

/// # Safety
/// The tensor is readable. The box (the copied part of the tensor) fits at `offset` of the shared memory at
/// `base`.
unsafe fn load_tile(shape: &TensorMapShape, origin: &[i32], base: *mut u8, offset: u32) {
    let size = shape.element.bytes();
    let (width, outside) = (shape.tile[0] * size, if shape.nan_outside { 0xFF } else { 0 });
    let mut line = vec![outside; width as usize];
    shape.rows(origin, |row, from, inside| {
        line.fill(outside);
        let (first, last) = ((inside.start * size) as usize, (inside.end * size) as usize);
        // SAFETY: the copy reads the elements `first` to `last` of this row. `rows` returns only elements
        // that lie inside the tensor, and the caller guarantees that the tensor is readable.
        unsafe {
            from.wrapping_add(first).copy_to_nonoverlapping(line[first..last].as_mut_ptr(), last - first);
        }
        for (at, chunk) in line.as_chunks::<16>().0.iter().enumerate() {
            let place = shape.swizzle.place(FIRST_ADDRESS + offset + row + 16 * at as u32) - FIRST_ADDRESS;
            // SAFETY: the write covers one 16-byte chunk of the box. The swizzle moves a chunk only within
            // its 128 bytes, which are in the box.
            unsafe { base.add(place as usize).cast::<[u8; 16]>().write(*chunk) };
        }
    });
}

/// Starts a TMA copy of the box at `from` in shared memory to the coordinates `origin` of the tensor. With a
/// reduction, the elements of the tensor are combined with those of the box.
pub(crate) fn tensor_store(from: u32, map: u64, origin: &[i32], reduction: Option<Reduction>) {
    operate(|block| {
        let shape = block.tensor_map(map, origin);
        let from = block.own_place(from, shape.bytes(), 128);
        if let Some(reduction) = reduction
            && reduction.apply(shape.element, 0, 0).is_none()
        {
            block.raise(FaultKind::Reduction { reduction, element: shape.element });
        }
        let group = block.start_group_copy(from, shape.bytes());
        let (bytes, origin) = (shape.bytes(), origin.to_vec());
        // SAFETY: the kernel guarantees that it may write to the tensor.
        let write = move |tile: &[u8]| unsafe { store_tile(&shape, &origin, tile, from.offset, reduction) };
        block.push_store(from, bytes, group, Box::new(write));
    });
}

/// Writes the box `tile` to the tensor. The bytes of `tile` come from `offset` in shared memory, which is a
/// multiple of 128.
///
/// # Safety
/// The tensor is writable.
unsafe fn store_tile(
    shape: &TensorMapShape,
    origin: &[i32],
    tile: &[u8],
    offset: u32,
    reduction: Option<Reduction>,
) {
    let size = shape.element.bytes();
    let _lock = reduction.map(|_| REDUCTIONS.lock().unwrap_or_else(PoisonError::into_inner));
    shape.rows(origin, |row, to, inside| {
        for element in inside {
            let at = FIRST_ADDRESS + offset + row + element * size;
            // The index is in bounds: the swizzle moves a 16-byte chunk only within a 128-byte segment, and
            // the box contains the whole segment.
            let from = (shape.swizzle.place(at) - FIRST_ADDRESS - offset) as usize;
            let to = to.wrapping_add((element * size) as usize).cast_mut();
            let mut bits = [[0; 4]; 2];
            bits[0][..size as usize].copy_from_slice(&tile[from..][..size as usize]);
            // SAFETY: the accesses cover one element of the tensor. `rows` returns only elements that lie
            // inside the tensor, and the caller guarantees that the tensor is writable.
            unsafe {
                if let Some(reduction) = reduction {
                    to.copy_to_nonoverlapping(bits[1].as_mut_ptr(), size as usize);
                    let [tile, tensor] = bits.map(u32::from_le_bytes);
                    let combined = reduction.apply(shape.element, tensor, tile).expect("checked");
                    bits[0] = combined.to_le_bytes();
                }
                to.copy_from_nonoverlapping(bits[0].as_ptr(), size as usize);
            }
        }
    });
}

/// Sends `value` to the shared memory at `to` of another block. The mbarrier at `barrier` of that block
/// counts the 8 bytes (`st.async`).
pub(crate) fn send(to: u32, barrier: u32, value: u64) {
    operate(|block| {
        let (to, barrier) = (block.place(to, 8, 8), block.place(barrier, 8, 8));
        block.start_copy(to, barrier, 8, By::Copy(None));
        let pointer = block.pointer(to).cast::<u64>();
        let run = move |cluster: &Cluster| {
            // SAFETY: `place` checked the word.
            unsafe { pointer.write(value) };
            cluster.complete_bytes(barrier, 8);
        };
        block.push_load(vec![to], Box::new(run));
    });
}

/// Loads a word from the shared memory of a block of the cluster (`ld.shared::cluster`).
pub(crate) fn remote_load(address: u32) -> u32 {
    operate(|block| {
        let place = block.place(address, 4, 4);
        block.record(place, 4, block.thread_access(), false);
        // SAFETY: `place` checked the word.
        unsafe { block.pointer(place).cast::<u32>().read() }
    })
}

/// Stores a word to the shared memory of a block of the cluster (`st.shared::cluster`).
pub(crate) fn remote_store(address: u32, value: u32) {
    operate(|block| {
        let place = block.place(address, 4, 4);
        block.record(place, 4, block.thread_access(), true);
        // SAFETY: `place` checked the word.
        unsafe { block.pointer(place).cast::<u32>().write(value) }
    });
}
