//! One source for several widths of vector: the compiler makes the loops of a function into vectors of what the
//! processor has, chosen when it runs.

/// Plain loops over arrays, a burst at a time, to be run by [`widest`].
pub trait Wide {
    /// What comes out.
    type Out;

    /// The loops. Must be `#[inline(always)]`, as must all it calls: what is not stays as narrow as the baseline.
    fn run(self) -> Self::Out;
}

/// Runs `loops`, compiled for AVX-512, for AVX2 or for the baseline, whichever is the widest that the processor has.
/// All three have one source: a test of `run` itself tests the others' twin.
#[inline(always)]
pub fn widest<W: Wide>(loops: W) -> W::Out {
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2") {
        if is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
        {
            // SAFETY: the processor has the instructions (and what they imply, such as AVX-512F).
            return unsafe { avx512(loops) };
        }
        // SAFETY: as above.
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
