//! One source for several vector widths: the compiler vectorises the loops of a function for several instruction sets,
//! and the processor's widest is chosen at run time.

/// Plain loops over arrays, a burst at a time, to be run by [`widest`].
pub trait Wide {
    /// Result of the loops.
    type Out;

    /// Runs the loops. Must be `#[inline(always)]`, as must every function it calls: code that is not inlined is
    /// compiled for the baseline only.
    fn run(self) -> Self::Out;
}

/// Runs `loops`, compiled for AVX-512, AVX2 or the baseline, whichever is the widest that the processor supports. All
/// three are compiled from one source, so that testing `run` directly tests the same code.
#[inline(always)]
pub fn widest<W: Wide>(loops: W) -> W::Out {
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2") {
        if is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
        {
            // SAFETY: the processor has the instructions (and those they imply, such as AVX-512F).
            return unsafe { avx512(loops) };
        }
        // SAFETY: the processor has the instructions.
        return unsafe { avx2(loops) };
    }
    loops.run()
}

#[target_feature(enable = "avx512bw,avx512vl,avx512dq,bmi2")]
fn avx512<W: Wide>(loops: W) -> W::Out {
    loops.run()
}

#[target_feature(enable = "avx2,bmi2")]
fn avx2<W: Wide>(loops: W) -> W::Out {
    loops.run()
}
