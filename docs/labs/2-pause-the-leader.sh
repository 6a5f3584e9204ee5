#!/usr/bin/env bash
# Lab 2, pause the leader: docs/labs/2-pause-the-leader.md says what to look for.
. "$(dirname "${BASH_SOURCE[0]}")/lab.sh"
need_mesh
sweep storm
pause_seconds=${LAB_PAUSE_SECONDS:-8}

first=$(orrery leader)
say "A storm of $PODS pods. The API servers stand still for a moment, so that $first has decided more than it could send."
orrery storm --pods "$PODS" --timeout 300 & storm=$!
orrery wait -l app=storm --for bound --count $((PODS / 5)) --timeout 120
run docker pause "$(container apiserver-0)" "$(container apiserver-1)"
sleep 1
say "In that moment $first is paused: for $pause_seconds s, longer than its lease of ${ORRERY_LEASE_DURATION_SECONDS:-5} s."
run docker pause "$(container "$first")"
paused=$SECONDS
run docker unpause "$(container apiserver-0)" "$(container apiserver-1)"
second=$(run orrery leader --other-than "$first" | tail -n 1)
say "$second leads now; $first does not know yet."
while [ $((SECONDS - paused)) -lt "$pause_seconds" ]; do sleep 0.2; done
run docker unpause "$(container "$first")"
wait "$storm"
[ "$(orrery leader)" = "$second" ] || fail "$first came back and took over"

say "What $first had decided before, and sent only now:"
fenced=0
for _ in $(seq 50); do
  fenced=$(orrery traces --service orrery-apiserver --tag orrery.bind.outcome=FENCED --process "$first" --count)
  [ "$fenced" -gt 0 ] && break
  sleep 0.2
done
# Processes write their spans every half second; the last of these traces get theirs.
sleep 2
[ "$fenced" -gt 0 ] || fail "no bind was on its way when the leader was paused; try more pods: LAB_PODS=5000"
run orrery traces --service orrery-apiserver --tag orrery.bind.outcome=FENCED --process "$first" --limit 5

pod=$(orrery traces --service orrery-apiserver --tag orrery.bind.outcome=FENCED --process "$first" --process "$second" --limit 1 2>/dev/null | awk 'NR == 2 {print $2}')
say "One of them, $pod, in one trace: $first's late bind, FENCED, and $second's, BOUND."
run orrery trace "pod/$pod" --no-events

say "Every pod was bound once."
all_well
sweep storm
say "Lab 2 holds."
