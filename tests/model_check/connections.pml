/* How frames of words, all-to-alls and sums share a connection between two ranks (workers/comm/socket_*), four ranks, under any
   delays: is there a deadlock?

   Every rank exchanges rows with its partner, layer by layer, and launches sums beside it: the first with its partner, the
   second with another rank, so that groups overlap in a ring.  Ranks need not agree when a sum may start: the even ones launch
   it when their gradients are complete, the odd ones when their backward is done.  Whose rows and sums are over tells both its
   neighbours a word, of class control, and waits for theirs.  A message of rows or of a word is one frame, one of a sum FRAMES.
   A connection carries one frame at a time, in order, of the class that is first in kSendOrder (workers/comm/tcp/socket_traffic.h); a
   frame that has been sent is in front of all that follow.  A collective is over when all its frames have come and gone.
   A delay is that others go first, which spin tries in every order.  (A grant comes at once here: a later one is a sender that
   goes later.)
   -DLAYER_SUMS has two sums of each layer behind its rows, of a class between rows and sums and of one frame each: with the
   partner, then with the other neighbour.
   -DWINDOW=2 has two sums of a rank under way at a time, as the trainer has when its own backward is done.  With frames that travel these are
   more states than can be searched, so there -DAT_ONCE lets a frame arrive when it is sent: a delay is then that it is sent
   later.

   The designs (-D), and what must come out:
     GRANTS        rows first; of a message whose receiver has not launched its call only EARLY frames       no deadlock
     ONE_QUEUE     the same credit, but frames in the order of their launches                                a deadlock
     NO_CREDIT     rows first, but the receiver stops reading when nobody takes what comes                   a deadlock
     EARLY_WORD    GRANTS, but rank 3 waits for words before its rows                                        a deadlock      */

#define N 4
#ifndef ROWS
#define ROWS 2
#endif
#ifndef WINDOW
#define WINDOW 1
#endif
#define SUMS 2
#define FRAMES 2
#define EARLY 1

byte rows[N], sums[N], words[N]; /* launched on a rank */
byte layers[N];        /* of backward that are done */

/* Of the connection from s to t. */
#define AT(s, t) ((s) * N + (t))
byte wire[N * N]; /* 0 nothing, 1 a frame of rows, 2 of a sum, 3 of words, 4 of a layer's sum */
byte rows_sent[N * N], rows_got[N * N], sums_sent[N * N], sums_got[N * N], words_sent[N * N], words_got[N * N]; /* frames */
#ifdef LAYER_SUMS
byte layer_sums[N], layer_sums_sent[N * N], layer_sums_got[N * N];
/* Frames from s to t of the first k. */
#define OF_LAYERS(s, t, k) ((t) == ((s) ^ 1) -> ((k) + 1) / 2 : (k) / 2)
#define LAYER_SUM_GRANTED(s, t) (layer_sums_sent[AT(s, t)] < OF_LAYERS(t, s, layer_sums[t]) + EARLY)
#define LAYER_SUM_MAY_GO(s, t) (layer_sums_sent[AT(s, t)] < OF_LAYERS(s, t, layer_sums[s]) && LAYER_SUM_GRANTED(s, t))
#define LAYER_SUM_HERE(r, t) \
  (layer_sums_got[AT(t, r)] >= OF_LAYERS(t, r, layer_sums[r]) && layer_sums_sent[AT(r, t)] >= OF_LAYERS(r, t, layer_sums[r]))
#else
#define LAYER_SUM_MAY_GO(s, t) false
#endif
#ifdef ONE_QUEUE
byte before[N * ROWS]; /* sums that were launched before these rows */
#endif

/* Frames from s to t of the first k sums. */
#define OF_SUMS(s, t, k) (((k) >= 1 && (t) == ((s) ^ 1)) || ((k) >= 2 && (t) == ((s) ^ 2)) -> FRAMES : 0)

#ifdef NO_CREDIT
#define ROWS_GRANTED(s, t) true
#define SUM_GRANTED(s, t) true
#define TAKES_ROWS(s, t) (rows_got[AT(s, t)] < rows[t] + EARLY)
#define TAKES_SUM(s, t) (sums_got[AT(s, t)] < OF_SUMS(t, s, sums[t]) + EARLY)
#else
#define ROWS_GRANTED(s, t) (rows_sent[AT(s, t)] < rows[t] + EARLY)
#define SUM_GRANTED(s, t) (sums_sent[AT(s, t)] < OF_SUMS(t, s, sums[t]) + EARLY)
#define TAKES_ROWS(s, t) true
#define TAKES_SUM(s, t) true
#endif
#ifdef ONE_QUEUE
#define TURN_OF_ROWS(s, t) (sums_sent[AT(s, t)] >= OF_SUMS(s, t, before[(s) * ROWS + rows_sent[AT(s, t)]]))
#else
#define TURN_OF_ROWS(s, t) true
#endif
#define WORDS_MAY_GO(s, t) (words_sent[AT(s, t)] < words[s])
#define ROWS_MAY_GO(s, t) ((t) == ((s) ^ 1) && rows_sent[AT(s, t)] < rows[s] && TURN_OF_ROWS(s, t) && ROWS_GRANTED(s, t))
#define SUM_MAY_GO(s, t) (sums_sent[AT(s, t)] < OF_SUMS(s, t, sums[s]) && SUM_GRANTED(s, t))

#ifdef AT_ONCE
#define ONTO_WIRE(s, t, frame, got) got[AT(s, t)]++
#else
#define ONTO_WIRE(s, t, frame, got) wire[AT(s, t)] = frame
#endif

proctype Connection(byte s; byte t) {
end:
  do
  :: atomic { wire[AT(s, t)] == 0 && WORDS_MAY_GO(s, t) -> ONTO_WIRE(s, t, 3, words_got); words_sent[AT(s, t)]++ }
  :: atomic { wire[AT(s, t)] == 0 && !WORDS_MAY_GO(s, t) && ROWS_MAY_GO(s, t) -> ONTO_WIRE(s, t, 1, rows_got); rows_sent[AT(s, t)]++ }
#ifdef LAYER_SUMS
  :: atomic { wire[AT(s, t)] == 0 && !WORDS_MAY_GO(s, t) && !ROWS_MAY_GO(s, t) && LAYER_SUM_MAY_GO(s, t) ->
       ONTO_WIRE(s, t, 4, layer_sums_got); layer_sums_sent[AT(s, t)]++ }
  :: atomic { wire[AT(s, t)] == 4 -> wire[AT(s, t)] = 0; layer_sums_got[AT(s, t)]++ }
#endif
  :: atomic { wire[AT(s, t)] == 0 && !WORDS_MAY_GO(s, t) && !ROWS_MAY_GO(s, t) && !LAYER_SUM_MAY_GO(s, t) && SUM_MAY_GO(s, t) ->
       ONTO_WIRE(s, t, 2, sums_got); sums_sent[AT(s, t)]++ }
  :: atomic { wire[AT(s, t)] == 1 && TAKES_ROWS(s, t) -> wire[AT(s, t)] = 0; rows_got[AT(s, t)]++ }
  :: atomic { wire[AT(s, t)] == 2 && TAKES_SUM(s, t) -> wire[AT(s, t)] = 0; sums_got[AT(s, t)]++ }
  :: atomic { wire[AT(s, t)] == 3 -> wire[AT(s, t)] = 0; words_got[AT(s, t)]++ }
  od
}

#define WORDS_HERE(r, t) (words_got[AT(t, r)] >= words[r] && words_sent[AT(r, t)] >= words[r])
#define ROWS_OVER(r) (rows_got[AT((r) ^ 1, r)] >= rows[r] && rows_sent[AT(r, (r) ^ 1)] >= rows[r])

proctype Backward(byte r) {
#ifdef EARLY_WORD
  if
  :: r == 3 -> words[r]++; WORDS_HERE(r, r ^ 1) && WORDS_HERE(r, r ^ 2)
  :: r != 3
  fi;
#endif
  do
  :: layers[r] < ROWS ->
#ifdef ONE_QUEUE
     atomic { before[r * ROWS + rows[r]] = sums[r]; rows[r]++ }
#else
     rows[r]++;
#endif
#ifdef LAYER_SUMS
     atomic { ROWS_OVER(r) -> layer_sums[r]++ }
     atomic { LAYER_SUM_HERE(r, r ^ 1) -> layer_sums[r]++ }
     atomic { LAYER_SUM_HERE(r, r ^ 2) -> layers[r]++ }
#else
     atomic { ROWS_OVER(r) -> layers[r]++ }
#endif
  :: layers[r] == ROWS -> break
  od
}

#define SUM_HERE(r, t, k) (sums_got[AT(t, r)] >= OF_SUMS(t, r, k) && sums_sent[AT(r, t)] >= OF_SUMS(r, t, k))
#define SUMS_OVER(r, k) (SUM_HERE(r, (r) ^ 1, k) && SUM_HERE(r, (r) ^ 2, k))
#define MAY_SUM(r, i) ((layers[r] > (i) || layers[r] == ROWS) && (((r) & 1) == 0 || layers[r] == ROWS))

proctype Sums(byte r) {
  byte waited;
  do
  :: atomic { sums[r] < SUMS && sums[r] - waited < WINDOW && MAY_SUM(r, sums[r]) -> sums[r]++ }
  :: atomic { waited < sums[r] && SUMS_OVER(r, waited + 1) -> waited++ }
  :: waited == SUMS && layers[r] == ROWS -> break
  od;
  atomic { waited = 0; words[r]++ }
  WORDS_HERE(r, r ^ 1) && WORDS_HERE(r, r ^ 2)
}

init {
  byte s;
  atomic {
    do
    :: s < N -> run Backward(s); run Sums(s); run Connection(s, s ^ 1); run Connection(s, s ^ 2); s++
    :: s == N -> break
    od;
    s = 0
  }
}
