#!/usr/bin/env bash
# Measure on a borrowed GPU, in order of what decides most; then one archive of records, checkpoints and output.
# usage: tools/gpu.sh FOLDER [SECONDS]        (540 seconds unless set; PYTHON names another interpreter)
#        tools/gpu.sh --rehearse FOLDER [SECONDS]    (every line on the CPU, at tiny sizes)
# Recorded cells are skipped and a training goes on at its checkpoint, so the same command goes on where it stopped.
# On the next machine: tar -xzf FOLDER.tar.gz
set -uf
rehearse= device=cuda
[ "${1:-}" = --rehearse ] && { rehearse=1 device=cpu; export TRITON_INTERPRET=1; shift; }
[ $# -ge 1 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
results=$1 end=$((SECONDS + ${2:-540})) python=${PYTHON:-.venv/bin/python} failed=0 late=
mkdir -p "$results" || exit 1
trap 'tar -czf "$results.tar.gz" "$results"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

tiny="dataset=synthetic sequence_length=16 model.layers=1 model.width=32 model.heads=2 model.feed_forward=64"
block="toggles=[{precision:bf16}] text={width:32,heads:2} text.context=16 ratio=1.457 BRIEF"
formats='methods=[dense,btt,grouped,low_rank:spectral,{comera\:orthogonal:{gamma:0.0,beta:0.0}},{comera\:orthogonal:{gamma:0.0,beta:0.0,merge_tf32:false}}]'
brief="timing.block_seconds=0.05 timing.blocks=1 timing.extra_blocks=0 timing.warmup_steps=1"
# A line: a module with its arguments | those on the GPU | those of the rehearsal.
while IFS='|' read -r words on_gpu on_cpu; do
  if [ "$rehearse" ]; then words+=$on_cpu; else words+=$on_gpu; fi
  words=${words//FORMATS/$formats} words=${words//TINY/$tiny BRIEF} words=${words//BLOCK/$block} words=${words//BRIEF/$brief} left=$((end - SECONDS))
  case $words in bench\ experiment=*) words+=" device=$device reuse=config timing.launches=1 results=$results" ;; esac
  [ "$left" -gt 0 ] || { late=$words; break; }
  echo "$left s left: $words" >&2
  timeout --foreground --kill-after=30 "$left" "$python" -m $words </dev/null | tee -a "$results/output.txt"
  case ${PIPESTATUS[0]} in
    0) ;;
    124 | 137) late=$words; break ;; # out of time
    130 | 143) exit 130 ;;
    *) failed=1 ;;
  esac
done <<'END'
pytest -q tests/comera/test_comera_kernels.py tests/bench/test_captured_step.py || -k gelu_by_one
bench experiment=correctness | +checked=layer,lookup,steps,forms precision=fp32,bf16 | +checked=layer precision=fp32 linear={in_features:32,out_features:64} batch_size=16
bench experiment=steps name=profile measure=profile precision=bf16 methods=[comera,dense] | cuda_graph=true batch_size=1,128 | batch_size=1 TINY
bench experiment=fig1 name=levers batch_size=1 precision=bf16 methods=[comera,{comera:{fused:kernels}},{comera:{fused:torch}},{comera:{merge_jointly:false}},{comera:{merge_tf32:false}},low_rank@size,dense] | cuda_graph=true toggles=[{batch_size:1},{batch_size:32},{batch_size:64},{batch_size:128}] | cuda_graph=false TINY
bench experiment=fig1 name=levers batch_size=1 precision=fp32 methods=[comera,{comera:{fused:torch}},low_rank@size,dense] | cuda_graph=true toggles=[{batch_size:1},{batch_size:64}] | cuda_graph=false toggles=[{batch_size:1},{batch_size:2}] TINY
bench experiment=fig1 name=levers batch_size=1 precision=bf16 compile=true methods=[comera,dense] | cuda_graph=true toggles=[{batch_size:1},{batch_size:32},{batch_size:128}] | cuda_graph=false TINY
bench experiment=widths_decoder FORMATS | toggles=[{precision:bf16,cuda_graph:true}] text.width=4096 text.heads=64 ratio=3.85 | BLOCK
bench experiment=widths_decoder FORMATS | toggles=[{precision:bf16,cuda_graph:true}] text.width=768 text.heads=12 ratio=3.343 | BLOCK
bench experiment=widths_decoder FORMATS | toggles=[{precision:bf16,cuda_graph:true}] text.width=2048 text.heads=32 ratio=3.715 | BLOCK
bench experiment=fig1 name=levers_lean batch_size=1 precision=bf16 methods=[comera:lean,comera:lean_block,low_rank@size:lean,dense+checkpoint] | cuda_graph=true toggles=[{batch_size:32},{batch_size:128}] | cuda_graph=false TINY
bench advise measure model=bench/conf/models/bert_base.json sequence_length=128 ratio=4 arms=dense,btt,comera | device=h200 precision=bf16 batch_size=128 | device=cpu batch_size=1
bench experiment=prediction precision=bf16,fp32 | methods=[comera,comera:lean,low_rank@size,dense] batch_size=1,32,128 | methods=[comera,dense] batch_size=1 TINY
bench experiment=pointer_full || cuda_graph=false training.steps=2 batch_size=2 pointer={layers:1,width:32,heads:2,feed_forward:64,evaluated:8,probe_windows:100,context:16,vocabulary:2000}
bench experiment=fig1 || batch_size=1 methods=[comera,dense] cuda_graph=false TINY
bench experiment=fig7 precision=fp32,bf16 || batch_size=1 methods=[comera,dense] toggles=[{}] TINY
bench experiment=ratios || ratio=2 batch_size=1 methods=[comera,dense] TINY
bench experiment=fig5 || table={rows:100,columns:16} batch_size=8 BRIEF
bench experiment=table_fp8 || linear={in_features:32,out_features:32} batch_size=16 BRIEF
END
[ -z "$rehearse" ] || [ -z "$late" ] || { echo "the time was up before the end of: $late" >&2; failed=1; }
exit $failed
