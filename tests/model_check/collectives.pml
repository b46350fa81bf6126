/* How the collectives of a training step wait for each other on four ranks, under any delays: is there a deadlock?

   Experts are packed twice, so groups overlap: rows travel within {0,1} and {2,3} (all-to-alls); gradients of experts are
   summed over {0,2} and {1,3}, all others over all four (all-reduces); a barrier of class control ends the step.
   A collective is over when every member waits for it: for long messages nothing weaker holds (workers/comm/communicator.h).
   A delay is that others go first, which spin tries in every order.

   The designs (-D), and what must come out:
     TWO_CHANNELS  workers/train/grad_sync.h: two threads, each with its class; the rule delays only sums   no deadlock
     TWO_CHANNELS, WINDOW=2   with two sums under way at a time (preempt)                                   no deadlock
     TICKETS       priority_ticketed: one order over both, which rank 0 tells                               no deadlock
     LOCAL_QUEUE   Lina's rule as the paper has it: one queue a rank, by what is ready there                a deadlock
     OWN_ORDER     TWO_CHANNELS, but rank 3 has its first two sums the other way round                      a deadlock     */

#define N 4
#ifndef LAYERS
#define LAYERS 2
#endif
#ifndef WINDOW
#define WINDOW 1
#endif
#define SUMS (2 * LAYERS + 1) /* of each layer one over replicas, one over all; of the embedding one over all */
#define NEEDS(i) ((i) / 2 + 1) /* stages that must be done */
#define OVER_REPLICAS(i) ((i) % 2 == 0 && (i) < 2 * LAYERS)

byte all_to_alls[N]; /* that a rank waits for, or has waited for */
byte sums[N];        /* the same */
byte stages[N];      /* of backward that are done */
bool busy[N];        /* an all-to-all waits, runs or is about to come, as the rank itself knows */
byte over[N];        /* threads that are done: 1 backward, 2 its sums, too */
byte barrier;

#define ALL_TO_ALL_OVER(r) (all_to_alls[(r) ^ 1] >= all_to_alls[r])
#define ALL_HAVE(n) (sums[0] >= (n) && sums[1] >= (n) && sums[2] >= (n) && sums[3] >= (n))
#define SUM_OVER(r, i) ((OVER_REPLICAS(i) && sums[(r) ^ 2] > (i)) || (!OVER_REPLICAS(i) && ALL_HAVE((i) + 1)))
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

proctype Backward(byte r) {
  byte layer;
  do
  :: layer < LAYERS ->
     busy[r] = true;
     AllToAll(r);
     busy[r] = false; /* while its experts are differentiated */
     busy[r] = true;
     AllToAll(r);
     atomic { busy[r] = false; stages[r]++; layer++ }
  :: layer == LAYERS -> break
  od;
  atomic { layer = 0; stages[r]++; over[r] = 1 } /* the embedding */
  atomic { over[r] == 2 -> barrier++ }
  barrier == N
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
  do
  :: atomic { launched < SUMS && launched - waited < WINDOW && MAY_SUM(r, launched) -> launched++ }
#if WINDOW == 1
     sums[r]++;
     atomic { SUM_OVER(r, waited) -> waited++ }
#else
  /* The oldest, when there is no room for another or none may go. */
  :: atomic { waited < launched && (launched - waited == WINDOW || launched == SUMS || !MAY_SUM(r, launched)) -> sums[r]++ }
     atomic { SUM_OVER(r, waited) -> waited++ }
#endif
  :: waited == SUMS -> break
  od;
  atomic { over[r] == 1 -> launched = 0; waited = 0; over[r] = 2 }
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
    :: r < N -> run Backward(r); run Sums(r); r++
    :: r == N -> break
    od;
    r = 0
  }
}
