/* How the collectives of a training step wait for each other on four ranks, under any delays: is there a deadlock?

   Experts are packed twice, so groups overlap: rows travel within {0,1} and {2,3} (all-to-alls); gradients of experts are
   summed over {0,2} and {1,3}, all others over all four (all-reduces).  Forward comes first: where experts have a capacity, a
   gather over all four goes before a layer's rows, in the same class as they (workers/moe/layer/expert_capacity.h).  Exchanges of
   class control end the step: a barrier, then the words that ranks stop, save and repack by (workers/train/job/rank_agreement.h).
   A collective is over when every member waits for it: for long messages nothing weaker holds (workers/comm/core/communicator.h).
   A delay is that others go first, which spin tries in every order.

   -DLAYER_SUMS has sharded and copied layers: in a mesh of two rows, class layer_sum of each layer sums over the rank's row, {0,1}
   or {2,3}, then over its column, {0,2} or {1,3}: Splits that overlap, in one order.
   -DSTEPS=n takes n steps.  With REPACK experts move within the old groups behind the first, then a barrier of class control;
   from there on rows travel among all four, and a replica's gradients are its own (workers/train/packing/repack.h).

   -DZERO has dense state sharded: a sum over all is then a reduce-scatter, one exchange in its place; after a step's last sum
   the trainer's thread gathers weights over all four, in the class of sums (workers/train/parameters/weight_gather.h).

   The designs (-D), and what must come out:
     TWO_CHANNELS  workers/train/reduce/grad_sync.h: two threads, each with its class; the rule delays only sums   no deadlock
     TWO_CHANNELS, WINDOW=2   with two sums under way at a time, more than in backward                      no deadlock
     TICKETS       priority_ticketed: one order over both, which rank 0 tells                               no deadlock
     LOCAL_QUEUE   Lina's rule as the paper has it: one queue a rank, by what is ready there                a deadlock
     OWN_ORDER     TWO_CHANNELS, but rank 3 has its first two sums the other way round                      a deadlock
     LATE_GATHER   TWO_CHANNELS, but rank 3 sends a layer's rows before it gathers                          a deadlock
     EARLY_WORDS   TWO_CHANNELS, but rank 3 tells its word within backward, as a saver with its own clock   a deadlock
     OWN_DECISION  TWO_CHANNELS with REPACK, but rank 3 repacks nothing                                     a deadlock
     LAYER_SUMS    TWO_CHANNELS with layers' sums                                                           no deadlock
     ZERO          TWO_CHANNELS with dense state sharded                                                    no deadlock
     EARLY_WEIGHTS ZERO, but rank 3 gathers weights within backward, as if each stage's were done by itself a deadlock
     COLUMNS_FIRST LAYER_SUMS, but ranks 0 and 3 sum over their column first                                a deadlock
     ONE_CLASS     LAYER_SUMS, but the sums over columns are of the same group and class as those of experts' gradients, which
                   another thread starts: ranks number them in different orders                             a deadlock     */

#define N 4
#ifndef LAYERS
#define LAYERS 2
#endif
#ifndef WINDOW
#define WINDOW 1
#endif
#ifndef STEPS
#define STEPS 1
#endif
#define SUMS (2 * LAYERS + 1) /* of a step: of each layer one over replicas, one over all; of the embedding one over all */
#define ALL_SUMS (STEPS * SUMS)
#define STAGES (LAYERS + 1) /* of a step */
#define NEEDS(i) ((i) / SUMS * STAGES + (i) % SUMS / 2 + 1) /* stages that must be done */
#define OVER_REPLICAS(i) ((i) % SUMS % 2 == 0 && (i) % SUMS < 2 * LAYERS)

/* All that is counted goes on over the steps. */
byte all_to_alls[N]; /* that a rank waits for, or has waited for */
byte gathers[N], sums[N]; /* the same */
byte stages[N];      /* of backward that are done */
bool busy[N];        /* an all-to-all waits, runs or is about to come, as the rank itself knows */
byte over[N];        /* threads that are done with the step: 1 backward, 2 its sums, too */
byte controls;       /* calls of class control, of all ranks together: each is over all four */

#ifdef ZERO
#define WEIGHTS 2 /* gathers of a step */
byte weights[N]; /* that a rank waits for, or has waited for */
#endif
#ifdef LAYER_SUMS
byte row_sums[N], column_sums[N]; /* of layers, as all_to_alls */
#endif
#ifdef ONE_CLASS
/* What a rank has launched in its column's one class: 1 a layer's sum, 2 a sum of gradients. */
#define PLACES (STEPS * 3 * LAYERS)
byte launches[N], launch[N * PLACES];
inline Launch(r, kind, place) { atomic { place = launches[r]; launch[(r) * PLACES + place] = kind; launches[r]++ } }
#define LAUNCHED(r, kind, place) (launch[(r) * PLACES + (place)] == (kind))
#endif

#define ALL_HAVE(what, n) (what[0] >= (n) && what[1] >= (n) && what[2] >= (n) && what[3] >= (n))
#ifdef REPACK
#define MOVES (4 * LAYERS + 1) /* the all-to-all in which experts move: the last of the old groups */
#define ALL_TO_ALL_OVER(r) \
  (all_to_alls[(r) ^ 1] >= all_to_alls[r] && (all_to_alls[r] <= MOVES || ALL_HAVE(all_to_alls, all_to_alls[r])))
#define ALONE(i) ((i) >= SUMS)
#ifdef OWN_DECISION
#define MOVES_EXPERTS(r, step) ((step) == 0 && (r) != 3)
#else
#define MOVES_EXPERTS(r, step) ((step) == 0)
#endif
#define CONTROLS_BEFORE(step) ((step) == 0 -> 0 : 2 * (step) + 1)
#else
#define MOVES_EXPERTS(r, step) false
#define CONTROLS_BEFORE(step) (2 * (step))
#define ALL_TO_ALL_OVER(r) (all_to_alls[(r) ^ 1] >= all_to_alls[r])
#define ALONE(i) false
#endif
#define SUM_OVER(r, i) \
  ((OVER_REPLICAS(i) && (ALONE(i) || sums[(r) ^ 2] > (i))) || (!OVER_REPLICAS(i) && ALL_HAVE(sums, (i) + 1)))
#define MAY_SUM(r, i) (stages[r] >= NEEDS(i) && !busy[r])

#if defined(TICKETS) || defined(LOCAL_QUEUE)
#define HELD
byte asked[N], granted[N]; /* all-to-alls: ready; that may go */
#endif
#ifdef TICKETS
byte ticket[2 * LAYERS + SUMS + 1]; /* 1 an all-to-all, 2 a sum, 3 the end */
byte told;
#endif
#ifdef LOCAL_QUEUE
byte came[N]; /* all-to-alls that are over */
#endif

/* Without sums beside it. */
inline PlainAllToAll(r) {
  all_to_alls[r]++;
  ALL_TO_ALL_OVER(r)
}

inline AllToAll(r) {
#ifdef HELD
  asked[r]++;
  atomic { granted[r] >= asked[r] -> all_to_alls[r]++ }
#else
  all_to_alls[r]++;
#endif
  ALL_TO_ALL_OVER(r);
#ifdef LOCAL_QUEUE
  came[r]++
#endif
}

inline Gather(r) {
  gathers[r]++;
  ALL_HAVE(gathers, gathers[r])
}

#ifdef ZERO
inline GatherWeights(r) {
  weights[r]++;
  ALL_HAVE(weights, weights[r])
}
#endif

#ifdef LAYER_SUMS
inline RowSum(r) {
  row_sums[r]++;
  row_sums[(r) ^ 1] >= row_sums[r]
}

inline ColumnSum(r) {
#ifdef ONE_CLASS
  Launch(r, 1, place);
  LAUNCHED((r) ^ 2, 1, place)
#else
  column_sums[r]++;
  column_sums[(r) ^ 2] >= column_sums[r]
#endif
}

inline LayerSums(r) {
#ifdef COLUMNS_FIRST
  if
  :: r == 0 || r == 3 -> ColumnSum(r); RowSum(r)
  :: r == 1 || r == 2 -> RowSum(r); ColumnSum(r)
  fi
#else
  RowSum(r);
  ColumnSum(r)
#endif
}
#endif

/* Of class control, the n-th. */
inline Exchange(n) {
  controls++;
  controls >= N * (n)
}

proctype Trainer(byte r) {
  byte layer, step;
#ifdef ONE_CLASS
  byte place;
#endif
  do
  :: step < STEPS ->
     do
     :: layer < LAYERS ->
#ifdef LATE_GATHER
        if
        :: r == 3 -> PlainAllToAll(r); Gather(r)
        :: r != 3 -> Gather(r); PlainAllToAll(r)
        fi;
#else
        Gather(r);
        PlainAllToAll(r);
#endif
        PlainAllToAll(r);
#ifdef LAYER_SUMS
        LayerSums(r);
#endif
        layer++
     :: layer == LAYERS -> break
     od;
     do
     :: layer > 0 ->
#ifdef LAYER_SUMS
        LayerSums(r);
#endif
        busy[r] = true;
        AllToAll(r);
        busy[r] = false; /* while its experts are differentiated */
        busy[r] = true;
        AllToAll(r);
        atomic { busy[r] = false; stages[r]++; layer-- }
#ifdef EARLY_WEIGHTS
        if
        :: r == 3 && layer == LAYERS - 1 -> GatherWeights(r)
        :: else
        fi
#endif
#ifdef EARLY_WORDS
        if
        :: r == 3 && layer == LAYERS - 1 -> Exchange(CONTROLS_BEFORE(step) + 1)
        :: else
        fi
#endif
     :: layer == 0 -> break
     od;
     atomic { stages[r]++; over[r] = 1 } /* the embedding */
#ifdef ZERO
     atomic { over[r] == 2 -> over[r] = 0 }
     do
     :: weights[r] < (step + 1) * WEIGHTS -> GatherWeights(r)
     :: weights[r] == (step + 1) * WEIGHTS -> break
     od;
     controls++;
#else
     atomic { over[r] == 2 -> over[r] = 0; controls++ }
#endif
     controls >= N * (CONTROLS_BEFORE(step) + 1);
     Exchange(CONTROLS_BEFORE(step) + 2); /* the words */
     if
     :: MOVES_EXPERTS(r, step) -> PlainAllToAll(r); Exchange(CONTROLS_BEFORE(step) + 3)
     :: else
     fi;
     step++
  :: step == STEPS -> break
  od
}

#ifdef TWO_CHANNELS
#ifdef OWN_ORDER
#define SUM_AT(r, i) ((r) == 3 && (i) < 2 -> 1 - (i) : (i))
bool in_sum[N * SUMS]; /* whether a rank waits for a sum, or has waited for it */
#define IN(r, i) in_sum[(r) * SUMS + (i)]
proctype Sums(byte r) {
  byte next, sum;
  do
  :: next < SUMS ->
     sum = SUM_AT(r, next);
     atomic { MAY_SUM(r, sum) -> IN(r, sum) = true }
     (OVER_REPLICAS(sum) && IN(r ^ 2, sum)) || (!OVER_REPLICAS(sum) && IN(0, sum) && IN(1, sum) && IN(2, sum) && IN(3, sum));
     next++
  :: next == SUMS -> break
  od;
  atomic { over[r] == 1 -> over[r] = 2 }
}
#else
proctype Sums(byte r) {
  byte launched, waited;
#ifdef ONE_CLASS
  byte place;
#endif
  do
  :: atomic { launched < ALL_SUMS && launched - waited < WINDOW && MAY_SUM(r, launched) -> launched++ }
#if WINDOW == 1
     sums[r]++;
#ifdef ONE_CLASS
     if
     :: OVER_REPLICAS(waited) -> Launch(r, 2, place); LAUNCHED(r ^ 2, 2, place)
     :: !OVER_REPLICAS(waited)
     fi;
#endif
     atomic { SUM_OVER(r, waited) -> waited++ }
#else
  /* The oldest, when there is no room for another or none may go. */
  :: atomic { waited < launched && (launched - waited == WINDOW || launched == ALL_SUMS || !MAY_SUM(r, launched)) -> sums[r]++ }
     atomic { SUM_OVER(r, waited) -> waited++ }
#endif
  :: atomic { over[r] == 1 && waited == stages[r] / STAGES * SUMS -> over[r] = 2 }
     if
     :: atomic { waited == ALL_SUMS -> launched = 0; waited = 0 } break
     :: waited < ALL_SUMS
     fi
  od
}
#endif
#endif

#ifdef TICKETS
proctype Sums(byte r) {
  byte next, place;
  do
  :: atomic { r == 0 && asked[0] > granted[0] -> ticket[told] = 1; told++; granted[0]++ }
  :: atomic { r == 0 && asked[0] == granted[0] && next < SUMS && MAY_SUM(0, next) -> ticket[told] = 2; told++; sums[0]++ }
     atomic { SUM_OVER(0, next) -> next++ }
  :: atomic { r == 0 && next == SUMS && over[0] == 1 -> ticket[told] = 3; told++ }
     break
  :: atomic { r != 0 && told > place && ticket[place] == 1 -> granted[r]++; place++ }
  :: atomic { r != 0 && told > place && ticket[place] == 2 && stages[r] >= NEEDS(next) -> sums[r]++; place++ }
     atomic { SUM_OVER(r, next) -> next++ }
  :: r != 0 && told > place && ticket[place] == 3 -> break
  od;
  atomic { over[r] == 1 -> next = 0; place = 0; over[r] = 2 }
}
#endif

#ifdef LOCAL_QUEUE
proctype Sums(byte r) {
  byte next;
  do
  :: asked[r] > granted[r] -> granted[r]++; came[r] == granted[r]
  :: atomic { asked[r] == granted[r] && next < SUMS && MAY_SUM(r, next) -> sums[r]++ }
     atomic { SUM_OVER(r, next) -> next++ }
  :: next == SUMS && over[r] == 1 -> break
  od;
  over[r] = 2
}
#endif

init {
  byte r;
  atomic {
    do
    :: r < N -> run Trainer(r); run Sums(r); r++
    :: r == N -> break
    od;
    r = 0
  }
}
