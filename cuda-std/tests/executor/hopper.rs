//! Tests Hopper's operations: mbarriers, named barriers, TMA and bulk copies, clusters and `setmaxnreg`. The
//! kernels in this file have no faults. The file `hopper_faults` has kernels with faults.
use cuda_std::cpu::{Swizzle, TensorMapElement, TensorMapShape};
use cuda_std::hopper::barrier::{Barrier, Named, publish};
use cuda_std::hopper::tensor_map::{
    self, Map, close_stores, wait_for_groups, wait_for_stores, wait_for_writes, wait_for_written_groups,
};
use cuda_std::hopper::{self, publish_shared};
use cuda_std::tensor_map::TensorMap;
use cuda_std::{cluster, mma};

use super::*;

/// Bytes of shared memory of most tests.
pub const BYTES: u32 = 24 << 10;

/// Returns the mbarrier with number `at`. The mbarriers lie at the start of shared memory.
pub fn mbarrier(at: u32) -> Barrier {
    Barrier::at(hopper::shared_base(16) + 8 * at)
}

/// Lets thread 0 initialize the mbarriers, and then synchronizes the block. Mbarrier number `i` expects
/// `arrivals[i]` arrivals per phase.
pub fn open(arrivals: &[u32]) {
    if me() == 0 {
        for (at, &arrivals) in (0..).zip(arrivals) {
            // SAFETY: the mbarrier lies in shared memory, and only thread 0 initializes it.
            unsafe { mbarrier(at).init(arrivals) };
        }
        publish();
    }
    block::sync();
}

/// Returns the address of the first tile in shared memory, after the mbarriers.
pub fn tile() -> u32 {
    hopper::shared_base(1024)
}

/// Returns the shared memory from [`tile`] on, as elements of `T`.
pub fn tile_of<T: Copy>() -> Shared<T> {
    let first = tile() - hopper::shared_base(16);
    let all = SharedMemory::of_launch().take::<u128>(BYTES / 16);
    all.part(first / 16, BYTES / 16 - first / 16).cast()
}

/// A tensor map with the alignment that TMA requires.
#[repr(align(64))]
pub struct AlignedMap(pub TensorMap);

/// A tensor of bytes with two dimensions, and its tensor map.
pub struct Tensor {
    map: AlignedMap,
    pub data: Vec<u128>,
}

impl Tensor {
    /// Creates a tensor of `rows` rows and `columns` columns. TMA copies boxes of the size `tile`.
    pub fn new(
        element: TensorMapElement,
        [rows, columns]: [u64; 2],
        tile: [u32; 2],
        swizzle: Swizzle,
        data: &[u8],
    ) -> Self {
        let stride = (columns * u64::from(element.bytes())).next_multiple_of(16);
        let mut words = vec![0_u128; (rows * stride / 16) as usize];
        // SAFETY: the vector has this many bytes.
        let bytes =
            unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), 16 * words.len()) };
        bytes[..data.len()].copy_from_slice(data);
        let shape = TensorMapShape {
            base: words.as_ptr().cast(),
            element,
            sizes: vec![columns, rows],
            strides: vec![stride],
            tile: vec![tile[1], tile[0]],
            swizzle,
            nan_outside: false,
        };
        let map = AlignedMap(shape.encode().unwrap());
        Self { map, data: words }
    }

    pub fn map(&self) -> Map {
        // SAFETY: the tensor map exists as long as `self`.
        unsafe { Map::at(&raw const self.map.0) }
    }
}

fn numbers(count: usize) -> Vec<u8> {
    (0..count).flat_map(|at| (at as u16 + 1).to_le_bytes()).collect()
}

#[test]
fn a_pipeline_of_two_warps_runs_through_many_phases() {
    // Warp 0 writes the numbers 0, 1, … alternately to two buffers, and warp 1 adds up the numbers that it
    // reads there.
    let sum = AtomicU32::new(0);
    run([3, 1, 1], [64, 1, 1], BYTES, &|| {
        open(&[32, 32, 32, 32]);
        let words = tile_of::<u32>();
        for number in 0..20 {
            let (stage, parity) = (number % 2, number / 2 % 2);
            let (full, empty) = (mbarrier(stage), mbarrier(2 + stage));
            // SAFETY: the mbarriers order the accesses to the buffers.
            unsafe {
                if me() < 32 {
                    empty.wait(parity ^ 1);
                    words.set(32 * stage + me(), number);
                    full.arrive();
                } else {
                    full.wait(parity);
                    sum.fetch_add(words.get(32 * stage + 63 - me()), Relaxed);
                    empty.arrive();
                }
            }
        }
    })
    .unwrap();
    assert_eq!(sum.into_inner(), 3 * 32 * (0..20).sum::<u32>());
}

#[test]
fn one_thread_may_poll_an_mbarrier() {
    run([1; 3], [64, 1, 1], BYTES, &|| {
        open(&[63]);
        // SAFETY: the mbarrier is initialized.
        unsafe {
            if me() == 0 {
                while !mbarrier(0).test(0) {}
            } else {
                mbarrier(0).arrive();
            }
        }
    })
    .unwrap();
}

#[test]
fn a_thread_may_poll_as_often_as_it_likes() {
    // In each round, thread 0 tests in a loop whether the current phase of mbarrier 0 has ended. The other
    // warp ends this phase later. If `both` is true, thread 0 also tests mbarrier 2, whose phase never ends.
    let of = |both: bool| {
        let (rounds, in_vain) = (12_000, AtomicU32::new(0));
        run([1; 3], [64, 1, 1], BYTES, &|| {
            open(&[1, 1, 1]);
            for round in 0..rounds {
                // SAFETY: the mbarriers are initialized.
                unsafe {
                    if me() == 0 {
                        while both && !mbarrier(2).test(0) && !mbarrier(0).test(round % 2)
                            || !both && !mbarrier(0).test(round % 2)
                        {
                            in_vain.fetch_add(1, Relaxed);
                        }
                        mbarrier(1).arrive();
                    } else if me() == 32 {
                        mbarrier(1).wait(1 - round % 2);
                        mbarrier(0).arrive();
                    }
                }
            }
        })
        .unwrap();
        in_vain.into_inner()
    };
    // The end of a phase wakes the thread that polls it.
    assert_eq!(of(false), 0);
    of(true);
}

#[test]
fn named_barriers_synchronize_their_warps() {
    let seen = zeros(32);
    run([1; 3], [96, 1, 1], BYTES, &|| {
        let words = tile_of::<u32>();
        // SAFETY: named barriers order the accesses, and whole warps arrive.
        unsafe {
            match me() / 32 {
                0 => {
                    words.set(me(), me());
                    Named::<64>(1).sync();
                    Named::<64>(2).arrive();
                }
                1 => {
                    Named::<64>(1).sync();
                    words.set(me(), words.get(me() - 32) + 1);
                    Named::<64>(3).arrive();
                }
                _ => {
                    Named::<64>(3).sync();
                    Named::<64>(2).sync();
                    seen[me() as usize - 64].store(words.get(me() - 32), Relaxed);
                }
            }
        }
    })
    .unwrap();
    assert_eq!(values(&seen), (1..33).collect::<Vec<_>>());
}

/// Copies the box at `origin` with TMA, and returns the bytes of shared memory.
fn copied(tensor: &Tensor, origin: [i32; 2], bytes: u32) -> Vec<u8> {
    let copy = zeros(bytes);
    run([1; 3], [64, 1, 1], BYTES, &|| {
        open(&[1]);
        // SAFETY: the box fits, and the mbarrier counts its bytes.
        unsafe {
            if me() == 0 {
                mbarrier(0).expect(bytes);
                tensor.map().copy(tile(), origin.map(i32::cast_unsigned), mbarrier(0));
            }
            mbarrier(0).wait(0);
            for at in (me()..bytes).step_by(64) {
                copy[at as usize].store(u32::from(tile_of::<u8>().get(at)), Relaxed);
            }
        }
    })
    .unwrap();
    values(&copy).into_iter().map(|byte| byte as u8).collect()
}

#[test]
fn tma_swizzles_boxes_and_fills_what_is_outside() {
    let (rows, columns) = (20_i32, 100_i32);
    let mut data = Vec::new();
    for row in 0..rows as usize {
        let mut line = numbers(rows as usize * 100)[row * 200..][..200].to_vec();
        line.resize(208, 0xEE);
        data.extend(line);
    }
    for (swizzle, row_bytes) in
        [(Swizzle::None, 48), (Swizzle::B32, 32), (Swizzle::B64, 64), (Swizzle::B128, 128)]
    {
        let width = row_bytes / 2;
        let tensor = Tensor::new(TensorMapElement::U16, [20, 100], [16, width], swizzle, &data);
        for origin in [[0, 0], [40, 3], [-5, -2], [80, 10], [97, 19], [-200, 0]] {
            let bytes = copied(&tensor, origin, 16 * row_bytes);
            for (r, c) in (0..16).flat_map(|r| (0..width as i32).map(move |c| (r, c))) {
                let at = (r as u32 * row_bytes) + 2 * c as u32;
                // With the 128-byte swizzle, chunk `c` (16 bytes) of a row is stored at position `c` XOR the
                // row number modulo 8.
                let chunk = match swizzle {
                    Swizzle::None => 0,
                    _ => (at >> 7 & 7) % (row_bytes / 16),
                };
                let at = (at ^ chunk << 4) as usize;
                let (row, column) = (origin[1] + r, origin[0] + c);
                let inside = (0..rows).contains(&row) && (0..columns).contains(&column);
                let expected = if inside { (row * 100 + column + 1) as u16 } else { 0 };
                let got = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
                assert_eq!(got, expected, "{swizzle:?} {origin:?} row {r} column {c}");
            }
        }
    }
}

#[test]
fn a_box_may_lie_far_outside_of_its_tensor() {
    // The address of the box would overflow: its offset in the tensor does not fit in 64 bits.
    let data = [7_u128; 8];
    let shape = TensorMapShape {
        base: data.as_ptr().cast(),
        element: TensorMapElement::F32,
        sizes: vec![32, 1, 1],
        strides: vec![1 << 39, 1 << 39],
        tile: vec![32, 2, 1],
        swizzle: Swizzle::B128,
        nan_outside: true,
    };
    let map = AlignedMap(shape.encode().unwrap());
    for origin in [[0, i32::MAX, i32::MAX], [i32::MIN, i32::MIN, 0], [i32::MAX; 3], [i32::MIN; 3]] {
        run([1; 3], [32, 1, 1], BYTES, &|| {
            open(&[1]);
            // SAFETY: the box fits, and the mbarrier counts its bytes.
            unsafe {
                if me() == 0 {
                    mbarrier(0).expect(256);
                    let map = Map::at(&raw const map.0);
                    map.copy(tile(), origin.map(i32::cast_unsigned), mbarrier(0));
                    publish_shared();
                    mbarrier(0).wait(0);
                    map.store(tile(), origin.map(i32::cast_unsigned));
                    close_stores();
                    wait_for_stores();
                }
                mbarrier(0).wait(0);
                assert!(tile_of::<f32>().get(2 * me()).is_nan());
            }
        })
        .unwrap();
    }
    assert_eq!(data, [7; 8]);
}

#[test]
fn tma_stores_only_what_is_inside() {
    let tensor = Tensor::new(TensorMapElement::U16, [10, 72], [8, 64], Swizzle::B128, &[0; 10 * 144]);
    run([1; 3], [32, 1, 1], BYTES, &|| {
        let tile_words = tile_of::<u16>();
        for at in (me()..512).step_by(32) {
            let (row, column) = (at / 64, at % 64);
            // SAFETY: each thread writes its own elements.
            unsafe { tile_words.set(row * 64 + (column ^ row << 3), 1 + at as u16) };
        }
        publish_shared();
        warp::sync(warp::ALL);
        if me() == 0 {
            // SAFETY: the store reads the box and writes to the tensor. The threads wrote all bytes of the
            // box. No other code writes to the tensor.
            unsafe { tensor.map().store(tile(), [16, 4]) };
            close_stores();
            wait_for_groups::<1>();
            wait_for_stores();
        }
    })
    .unwrap();
    // SAFETY: the vector has 10 rows of 72 elements.
    let stored = unsafe { core::slice::from_raw_parts(tensor.data.as_ptr().cast::<u16>(), 720) };
    for (at, &value) in stored.iter().enumerate() {
        let (row, column) = (at as i32 / 72 - 4, at as i32 % 72 - 16);
        let inside = row >= 0 && column >= 0;
        assert_eq!(i32::from(value), if inside { row * 64 + column + 1 } else { 0 }, "element {at}");
    }
}

#[test]
fn blocks_add_to_the_same_tensor() {
    let tensor = Tensor::new(TensorMapElement::F32, [8, 8], [8, 8], Swizzle::None, &[0; 256]);
    run([64, 1, 1], [32, 1, 1], BYTES, &|| {
        for at in (me()..64).step_by(32) {
            // SAFETY: each thread writes its own elements.
            unsafe { tile_of::<f32>().set(at, at as f32) };
        }
        publish_shared();
        block::sync();
        if me() == 0 {
            // SAFETY: the box is complete.
            unsafe { tensor.map().add(tile(), [0, 0]) };
            close_stores();
            wait_for_stores();
        }
    })
    .unwrap();
    // SAFETY: the vector has 64 elements.
    let sums = unsafe { core::slice::from_raw_parts(tensor.data.as_ptr().cast::<f32>(), 64) };
    assert!(sums.iter().enumerate().all(|(at, &sum)| sum == 64.0 * at as f32), "{sums:?}");
}

#[test]
fn bulk_copies_move_bytes_in_both_directions() {
    let from: Vec<u128> = (0..64).collect();
    let to: Vec<u128> = vec![0; 64];
    let addresses = [from.as_ptr().expose_provenance(), to.as_ptr().expose_provenance()];
    run([1; 3], [32, 1, 1], BYTES, &|| {
        open(&[1]);
        let [from, to] = addresses.map(core::ptr::with_exposed_provenance_mut::<u8>);
        // SAFETY: both vectors have 1024 bytes.
        unsafe {
            if me() == 0 {
                mbarrier(0).expect(1024);
                tensor_map::copy_bytes(tile(), from, 1024, mbarrier(0));
                mbarrier(0).wait(0);
                tensor_map::store_bytes(to, tile(), 512);
                tensor_map::store_bytes(to.add(512), tile() + 512, 512);
                close_stores();
                wait_for_stores();
            }
        }
    })
    .unwrap();
    assert_eq!(from, to);
}

#[test]
fn stores_write_when_a_thread_waits_for_their_writes() {
    let to = vec![0_u32; 3 * 64];
    let address = to.as_ptr().expose_provenance();
    let seen = zeros(8);
    run([1; 3], [32, 1, 1], BYTES, &|| {
        let to: *mut u32 = core::ptr::with_exposed_provenance_mut(address);
        let note = |at: u32, word: usize| {
            // SAFETY: the vector has this word.
            seen[at as usize].store(unsafe { to.add(word).read_volatile() }, Relaxed);
        };
        if me() > 0 {
            return;
        }
        // SAFETY: the copies write to the vector, which has 768 bytes. Thread 0 overwrites bytes of shared
        // memory only after a copy has read them.
        unsafe {
            for group in 0..2 {
                tile_of::<u32>().set(64 * group, 1 + group);
                publish_shared();
                tensor_map::store_bytes(to.add(64 * group as usize).cast(), tile() + 256 * group, 256);
                close_stores();
            }
            wait_for_groups::<1>();
            tile_of::<u32>().set(0, 7);
            note(0, 0);
            wait_for_stores();
            tile_of::<u32>().set(64, 8);
            note(1, 64);
            wait_for_written_groups::<1>();
            note(2, 0);
            note(3, 64);
            wait_for_writes();
            note(4, 64);
            // No thread waits for this copy. The executor must complete it before the kernel ends.
            publish_shared();
            tensor_map::store_bytes(to.add(128).cast(), tile(), 256);
            close_stores();
            wait_for_stores();
            note(5, 128);
            tile_of::<u32>().set(0, 9);
        }
    })
    .unwrap();
    assert_eq!(values(&seen)[..6], [0, 0, 1, 0, 2, 0]);
    assert_eq!([to[0], to[64], to[128]], [1, 2, 7]);
}

#[test]
fn blocks_of_a_cluster_share_memory() {
    let sums = zeros(8);
    run([8, 1, 1], [32, 1, 1], BYTES, &|| {
        thread::launch_bounds::<32, 1>();
        cluster::bounds::<4>();
        let (rank, words) = (cluster::rank(), tile_of::<u32>());
        assert_eq!(rank, thread::block_index()[0] % 4);
        // SAFETY: the code accesses words in the shared memory of this and other blocks. Cluster barriers
        // order the accesses, and no block exits before the last cluster barrier.
        unsafe {
            words.set(me(), thread::block_index()[0] * 100 + me());
            cluster::sync();
            let next = cluster::RemoteWord::of(&words, me(), (rank + 1) % 4).get();
            cluster::RemoteWord::of(&words, 32 + me(), (rank + 2) % 4).set(next);
            cluster::sync();
            let sum = warp::reduce(words.get(32 + me()), 32, |a: u32, b| a + b);
            sums[thread::block_index()[0] as usize].store(sum, Relaxed);
        }
    })
    .unwrap();
    let of = |block: u32| 32 * 100 * block + (0..32).sum::<u32>();
    assert_eq!(values(&sums), [3, 0, 1, 2, 7, 4, 5, 6].map(of));
}

#[test]
fn a_launch_without_clusters_has_the_barrier_of_a_cluster() {
    // Two properties are tested. A thread that has returned counts as arrived, even if it returns after the
    // other threads have arrived. The barrier of each block starts with phase 0, although each host thread
    // runs several blocks one after the other.
    let passed = zeros(1);
    run([40, 1, 1], [64, 1, 1], BYTES, &|| {
        let words = tile_of::<u32>();
        for round in 0..4 {
            if me() % 4 == round && me() > 4 {
                return;
            }
            // SAFETY: the barrier of the cluster orders the accesses.
            unsafe {
                words.set(me(), round);
                cluster::sync();
                assert_eq!(words.get(me() % 4), round);
                cluster::sync();
            }
        }
        passed[0].fetch_add(1, Relaxed);
    })
    .unwrap();
    assert_eq!(values(&passed), [40 * 5]);
}

/// Returns the time that this host thread has spent on a core.
#[cfg(unix)]
fn core_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the write.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

#[cfg(unix)]
#[test]
fn the_barrier_of_a_cluster_takes_linear_time() {
    // The launch takes about 0.5 s. If each arrival scanned all threads, the launch would take 3.5 s.
    let start = core_time();
    run([8, 1, 1], [1_024, 1, 1], 0, &|| {
        cluster::bounds::<8>();
        (0..60).for_each(|_| cluster::sync());
    })
    .unwrap();
    let time = core_time() - start;
    assert!(time < 2.5, "{time} s");
}

#[test]
fn a_multicast_copy_reaches_every_block_of_its_mask() {
    let tensor = Tensor::new(TensorMapElement::U16, [8, 64], [8, 64], Swizzle::B128, &numbers(512));
    let seen = zeros(4);
    run([4, 1, 1], [32, 1, 1], BYTES, &|| {
        cluster::bounds::<4>();
        let rank = cluster::rank();
        open(&[1, 3]);
        cluster::sync();
        // SAFETY: block 0 copies to the shared memory of the blocks 0, 1 and 3. These blocks wait for the
        // copy, so they have not exited. They then arrive at the second mbarrier of block 0, which does not
        // exit before these arrivals.
        unsafe {
            if rank == 0 && me() == 0 {
                mbarrier(0).expect(1024);
                tensor.map().multicast(tile(), [0, 0], mbarrier(0), 0b1011);
                mbarrier(0).wait(0);
                mbarrier(1).arrive();
                mbarrier(1).wait(0);
            } else if rank % 2 == 1 && me() == 0 {
                mbarrier(0).expect(1024);
                mbarrier(0).wait(0);
                mbarrier(1).arrive_in(0);
            }
            if rank != 2 && me() == 0 {
                seen[rank as usize].store(u32::from(tile_of::<u16>().get(63)), Relaxed);
            }
        }
        cluster::sync();
    })
    .unwrap();
    assert_eq!(values(&seen), [64, 64, 0, 64]);
}

#[test]
fn bytes_can_be_sent_to_another_block() {
    let seen = zeros(2);
    run([2, 1, 1], [32, 1, 1], BYTES, &|| {
        cluster::bounds::<2>();
        let (rank, words) = (cluster::rank(), tile_of::<u32>());
        open(&[1]);
        // SAFETY: each block sends bytes to the other block. The other block has not exited, because it waits
        // for these bytes.
        unsafe {
            words.set(me(), 1000 * rank + me());
            publish_shared();
            cluster::sync();
            if me() == 0 {
                mbarrier(0).expect(128);
                tensor_map::send_bytes(tile() + 128, tile(), 128, mbarrier(0), 1 - rank);
            }
            mbarrier(0).wait(0);
            if me() == 7 {
                seen[rank as usize].store(words.get(32 + 7), Relaxed);
            }
        }
        cluster::sync();
    })
    .unwrap();
    assert_eq!(values(&seen), [1007, 7]);
}

#[test]
fn warpgroups_pass_on_registers() {
    run([1; 3], [384, 1, 1], 0, &|| {
        // SAFETY: whole warpgroups execute the calls.
        unsafe {
            if me() < 128 {
                hopper::give_registers::<24>();
            } else {
                hopper::take_registers::<240>();
            }
        }
    })
    .unwrap();
}

#[test]
fn stored_matrices_have_the_fragments_of_the_loads() {
    run([1; 3], [32, 1, 1], BYTES, &|| {
        let words = [0, 1, 2, 3].map(|matrix| 100 * matrix + me());
        let chunks = tile_of::<mma::Chunk>();
        // SAFETY: each lane stores to its own row, and a barrier separates the stores from the loads.
        unsafe {
            hopper::shared_store_matrices(tile() + 16 * me(), words);
            block::sync();
            assert_eq!(mma::load(&chunks, me()), words);
            assert_eq!(hopper::shared_load_matrices(tile() + 16 * me()), words);
        }
    })
    .unwrap();
}

#[test]
fn stored_matrices_may_be_transposed() {
    run([1; 3], [32, 1, 1], BYTES, &|| {
        // In each matrix, a lane passes the elements of column `lane / 4` in two rows.
        let (column, row) = (me() / 4, me() % 4 * 2);
        let element = |matrix: u32, row: u32, column: u32| 100 * matrix + 10 * row + column;
        let word = |matrix| element(matrix, row, column) | element(matrix, row + 1, column) << 16;
        // SAFETY: each lane stores to its own row, and a barrier separates the stores from the loads.
        unsafe {
            hopper::shared_store_transposed(tile() + 16 * me(), [0, 1, 2, 3].map(word));
            block::sync();
            for column in 0..8 {
                let stored = u32::from(tile_of::<u16>().get(8 * me() + column));
                assert_eq!(stored, element(me() / 8, me() % 8, column));
            }
        }
    })
    .unwrap();
}
