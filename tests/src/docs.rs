//! Runs the Rust code of README.md, and launches that must not compile, as documentation tests. A test checks
//! that README.md quotes the error message of the CPU executor for its example of a missing barrier.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// Defines items whose documentation tests are the programs in `cuda-std/tests/typed_launches`. Each program
/// has an incorrect launch, and must fail to compile with the given error code.
macro_rules! does_not_compile {
    ($($item:ident = $code:literal $file:literal;)*) => { $(
        #[cfg(doctest)]
        #[doc = concat!("```compile_fail,", $code, "\n")]
        #[doc = include_str!(concat!("../../cuda-std/tests/typed_launches/", $file))]
        #[doc = "```"]
        struct $item;
    )* };
}
does_not_compile! {
    MissingArgument = "E0061" "missing_argument.rs";
    MisspeltName = "E0425" "misspelt_name.rs";
    WrongOrder = "E0308" "wrong_order.rs";
    WrongType = "E0308" "wrong_type.rs";
}

#[cfg(test)]
mod tests {
    use cuda_std::prelude::*;
    use oxiwarp::{Device, Kernels, Launch, Stream};

    /// The example kernel of README.md, but without the barrier between the writes and the reads of shared
    /// memory.
    ///
    /// # Safety
    /// `x` must be a matrix. The launch must have one block per row and one thread per column.
    unsafe fn reverse<T: Elem>(x: *mut T) {
        let ([column, ..], [columns, ..]) = (thread::index(), thread::block_dim());
        let row: Shared<T> = SharedMemory::of_launch().take(columns);
        // SAFETY: each thread accesses elements inside `x` and inside the shared memory. `x` has one element
        // per thread of the launch, and the shared memory has one element per thread of the block. The CPU
        // executor detects the missing barrier and ends the launch before a result is used.
        unsafe {
            let element = x.add((thread::block_index()[0] * columns + column) as usize);
            row.set(column, *element);
            *element = row.get(columns - 1 - column);
        }
    }
    entry!(@shared(|block| block[0] * size_of::<T>() as u32) reverse<T: [f32, bf16]>(x: *mut T) => reverse::<T>(x));

    #[test]
    fn readme_quotes_the_message_of_the_missing_barrier() {
        let device = Device::cpu();
        let kernels = Kernels::load(&device, &[], KERNELS).unwrap();
        let mut x = device.upload(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let shape = Launch::of([2, 1, 1], [3, 1, 1]);
        // SAFETY: `reverse` requires one block per row of `x` and one thread per column. `x` has two rows of
        // three elements, and the launch has two blocks of three threads.
        let fault = unsafe { launch::reverse(kernels.on(Stream::default(), shape), x.as_mut_ptr()) };
        let message = fault.unwrap_err().to_string();
        // The error message in README.md has another line number, because README.md shows the kernel as part
        // of a complete program.
        let readme = include_str!("../../README.md");
        let line = |text: &str| {
            text.lines().position(|line| line.trim() == "row.set(column, *element);").expect("the write") + 1
        };
        let program =
            readme.split("```rust\n").find(|block| block.contains("row.set(")).expect("the program");
        let (here, there) = (line(include_str!("docs.rs")), line(program));
        let place = format!(" at {}:{here}: ", file!());
        let quoted = message.replace(&place, &format!(" at src/main.rs:{there}: "));
        assert!(quoted != message && readme.contains(&quoted), "README does not quote: {quoted}");
    }
}
