import shlex
from pathlib import Path

import pytest

from overlaptop.timeline.lanes import Lane, LaneRules, describe_look_alikes, parse_rule

RECORDED = Path(__file__).with_name("recorded_kernels.txt").read_text().splitlines()
"""Every kernel of four jobs on H200s (DDP, DDP with a straggler, FSDP2, tensor parallel)."""

COMMUNICATES = (
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclAllReduceRingLLKernel_sum_f32(ncclWorkElem)",
    "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs4K)",
    "void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(float**)",
    "void c10d::symmetric_memory::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
    "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)",
    "c10d::nvshmem_extension::allToAllV(void*, void*, long*, long*, unsigned long, int)",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1, half>()",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)",
    "void deep_ep::elastic::hybrid_dispatch_impl<true, 8>(void*)",
    "nvshmemi_transfer_put(void*, void*, unsigned long)",
    "barrier_on_stream_kernel_threadgroup(int, int)",
    "void userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int, int, int, int, int, int, int, void**)",
    "kuserbuffers_pushsend(int*, int*, int4*, int4*, int)",
    "bytedance::flux::CudaIpcBarrierAllKernel(bytedance::flux::CudaIpcBarrierAllArgs)",
    # others than NCCL's, of servers mostly
    "_multimem_all_gather_kernel",
    "lamport_style_one_shot_all_reduce_kernel",
    "oneccl_reduce_base<float, 2, 16, 1, 1, 2>",
    "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__half> >(__half const*)",
    "void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)4, __nv_bfloat16>()",
    "void trtllm::ar_fusion::moe::moefinalize_allreduce_fusion_kernel_oneshot_lamport<half>()",
    "void tensorrt_llm::kernels::moe_alltoall::moeA2ADispatchKernel<8, false>(int const*)",
    "void tensorrt_llm::kernels::moeAllToAllKernel<8>(int const*)",
    "EpDispatchIntraNodeKernel_bf16",
    "void sglang::cross_device_all_gather<__nv_bfloat16, 8>(sglang::RankData*)",
    "void aiter::allgather_vec<__hip_bfloat16, 8>(aiter::RankData*)",
    "void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*)",
    "void tvm::runtime::allreduce_simple<__half>(mscclpp::SmChannelDeviceHandle *, const __half *)",
    "void uccl::internode_ll::dispatch<3, 10, 7168>(void*)",
    "nccldevkernel_allreduce_sum_f32_ring_ll",
    "ncclDevFunc_AllReduce_Sum_f32_RING_LL",
    "rccl_main_kernel(ncclDevComm*)",
    "hcclKernel_allreduce",
    "hcom_allReduce__042_1",
    "void all_reduce_one_shot_push_kernel<__nv_bfloat16, 4, true>(float*)",
    "kernel_cutlass_kernel_flashinferAllReduceOneShotLL_object_at__tensor",
    # of nobody in particular
    "alltoall_kernel",
    "void acme::ringAllGather<float, 8>(float*)",
    "_my_reduce_scatter_kernel",
    "_ZN4acme9alltoallvEPf",
    # the same as CUPTI hands them over
    "_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE",
    "_ZN12_GLOBAL__N_134two_shot_all_reduce_kernel_inplaceIN3c108BFloat16ELi16ELi2EEEvPPT_",
    "_ZN7deep_ep9intranode8dispatchILi8ELi768ELi8192EEEvP4int4Pf",
    "_ZN4c10d16symmetric_memoryL14barrier_kernelEPPjiiim",
)

FUSED = (
    # Flux: today's products with their all-gather or reduce-scatter, Hopper's and Ampere's, and 2024's
    "void cutlass::device_kernel<cutlass::gemm::kernel::Sm90AGGemmUniversal<cute::tuple<int> >>()",
    "_ZN7cutlass13device_kernelINS_4gemm6kernel19Sm90RSGemmUniversalIN4cute5tupleIJiiiEEEEEEEvNT_6ParamsE",
    "void cutlass::Kernel2<cutlass::gemm::kernel::GemmkWithVisitor<cutlass::epilogue::threadblock::"
    "VisitorAuxStoreScatter<float> >>(Params)",
    "void cutlass::Kernel2<bytedance::flux::FluxGemmKernel<bytedance::flux::GemmMeta<"
    "cute::C<(bytedance::flux::CommOpEnum)2> > > >(Params)",
    # torch's own
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int>, Mainloop, "
    "Epilogue, cutlass::gemm::PersistentAsyncInputScheduler<Schedule> > >(Params)",
    "kernel_consumer_gemm_persistent",
    "kernel_gemm_rs_producer_fuse_scatter",
    "void deep_gemm::sm100_fp8_fp4_mega_moe_impl<8192u, 7168u>(void*, int*, unsigned int)",
    "void acme::gemm_all_reduce_kernel<float>(float*)",
    "_ZN9deep_gemm27sm100_fp8_fp4_mega_moe_implILj8192EEEvPvPij",
)

SPINS = (
    "at::cuda::(anonymous namespace)::spin_kernel(long)",
    "_ZN2at4cuda12_GLOBAL__N_111spin_kernelEl",
    "_ZN2at4cuda55_GLOBAL__N__c8e2a0b1_8_Sleep_cu_8f7a3b2c_1234511spin_kernelEl",
)

COMPUTES = (
    # products that only a library of fused ones is behind
    "void cutlass::Kernel2<bytedance::flux::FluxGemmKernel<bytedance::flux::GemmMeta<"
    "cute::C<(bytedance::flux::CommOpEnum)0> > > >(Params)",
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
    "my_spin_kernel(int)",
    # Inductor names what it fuses after the operations that the code came from
    "triton_poi_fused_add_all_reduce_4",
    "triton_red_fused__wait_tensor_all_gather_into_tensor_native_layer_norm_2",
    "triton_poi_fused_nccl_one_shot_all_reduce_add_0",
    # local halves of communication libraries
    "void deep_ep::layout::get_dispatch_layout<256, 8, 64>(long const*, int*)",
    "void deep_ep::elastic::combine_reduce_epilogue_impl<8>(__nv_bfloat16*)",
    "void deep_ep::elastic::dispatch_copy_epilogue_impl<8>(void*, void*)",
    "void reduce_bf16_cuda<8>(void*, void*, int, int)",
    # block- and warp-wide reductions
    "void cub::DeviceReduceKernel<cub::DeviceReducePolicy<float>, float*>(float*)",
    "void softmax_warp_all_reduce<float>(float*)",
    "",
)


NAMES = {Lane.COMM: COMMUNICATES, Lane.FUSED: FUSED, Lane.IDLE: SPINS, Lane.COMPUTE: COMPUTES}


@pytest.mark.parametrize(
    ("lane", "name"), [(lane, name) for lane, names in NAMES.items() for name in names]
)
def test_a_kernel_is_what_the_identifiers_in_its_name_begin_with(lane, name):
    assert LaneRules().lane(name, "kernel") is lane


def test_exactly_nccls_kernels_of_recorded_jobs_communicate():
    rules = LaneRules()
    found = {name for name in RECORDED if rules.lane(name, "kernel") is Lane.COMM}
    assert found == {name for name in RECORDED if name.startswith("nccl")}
    assert 0 < len(found) < len(RECORDED)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("dispatch_kernel", "dispatch_kernel"),
        ("void pplx::moe_dispatch_tokens<8>(int*)", "moe_dispatch_tokens"),
        ("void acme::expertsCombine<float>(float*)", "expertsCombine"),
        ("_ZN4acme11send_kernelEPf", "send_kernel"),
    ],
)
def test_compute_named_like_communication_is_told_with_its_rule(name, part):
    assert LaneRules().look_alike(name) == part
    words = describe_look_alikes([part])
    (rule,) = shlex.split(words.partition("--lane ")[2])
    assert LaneRules([parse_rule(rule)]).lane(name, "kernel") is Lane.COMM
    assert not LaneRules([parse_rule(rule)]).look_alike(name)
    assert not LaneRules([parse_rule(f"compute={part}")]).look_alike(name)


def test_nothing_known_looks_like_communication():
    rules = LaneRules()
    names = [*RECORDED, *COMMUNICATES, *FUSED, *SPINS, *COMPUTES]
    assert [name for name in names if rules.look_alike(name)] == []


def test_copies_are_copies_except_those_to_another_gpu():
    lanes = {
        kind: LaneRules().lane("anything", kind) for kind in ("memcpy", "memset", "peer_memcpy", "kernel")
    }
    assert list(lanes.values()) == [Lane.COPY, Lane.COPY, Lane.COMM, Lane.COMPUTE]


def test_users_rules_come_first_and_the_first_match_wins():
    rules = LaneRules(
        parse_rule(text)
        for text in (
            "comm=^my_allreduce",
            "compute=my_",
            "copy=ncclDevKernel_Broadcast",
            "comm=HtoD",
            "copy=a=b",
        )
    )
    assert rules.lane("my_allreduce_v2", "kernel") is Lane.COMM
    assert rules.lane("a=b", "kernel") is Lane.COPY
    assert rules.lane("ncclDevKernel_my_", "kernel") is Lane.COMPUTE
    assert rules.lane("ncclDevKernel_Broadcast_RING_LL", "kernel") is Lane.COPY
    assert rules.lane("ncclDevKernel_AllGather_RING_LL", "kernel") is Lane.COMM
    assert rules.lane("Memcpy HtoD (Pinned -> Device)", "memcpy") is Lane.COMM


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("my_allreduce", "LANE=REGEX"),
        ("comm=", "LANE=REGEX"),
        ("", "LANE=REGEX"),
        ("network=x", "unknown lane 'network'.*compute, comm, copy, fused"),
        ("comm=(", "not a regular expression"),
    ],
)
def test_a_rule_that_is_none_is_refused_in_one_line(text, complaint):
    with pytest.raises(ValueError, match=complaint) as caught:
        parse_rule(text)
    assert "\n" not in str(caught.value)
