/*
 * The protocol around one job, for the model checker Spin: https://spinroot.com
 *
 * Each atomic step is one SQL statement, or one fact of the world: a process dies, a session is
 * cut, time passes. Any process may stand still between two steps for as long as it likes, which is
 * what SIGSTOP, a slow database and a full queue look like to the others.
 *
 * `make model` checks it, and checks that each of the mistakes named MISTAKE_… is found.
 */

#ifndef ATTEMPTS
#define ATTEMPTS 2
#endif
#ifndef FAULTS
#define FAULTS 2
#endif

/* Worker 1 runs two threads and may die. Worker 2 runs one and lives on: somebody has to. */
#define NAMES 3
#define NOBODY 0

mtype = { queued, processing, success, failed, cancelled };

/* The row. `lease_stands`: lease_expires_at lies ahead, by the database's clock. */
mtype status = queued;
byte lease_epoch = 0;
byte locked_by = NOBODY;
byte attempt_count = 0;
bool lease_stands = false;

/* The row as a standby has it that has not yet heard of the last claim. */
bool claim_may_be_lost = false;
byte epoch_before, attempts_before;

/* Sessions. `here`: the worker's sessions hold its presence lock. `watched`: the watcher does. */
bool alive[NAMES] = true;
bool here[NAMES] = true;
bool watched[NAMES] = false;

/* Celery. */
bool message = false;
bool sent = false;

/* How often something goes wrong, whatever it is. */
byte faults = FAULTS;

/* For the checks only: which thread's lease is the one that the row stands for. */
byte rightful = NOBODY;

/* In each worker's memory: the thread whose lease of this job is its latest. */
byte latest[NAMES] = NOBODY;

#define ENDED (status == success || status == failed || status == cancelled)

inline unlock() {
    locked_by = NOBODY;
    lease_stands = false;
    rightful = NOBODY;
    claim_may_be_lost = false;
    epoch_before = 0;
    attempts_before = 0
}

/* Back to the queue, or to an end when no attempt is left. */
inline verdict() {
    if
    :: attempt_count < ATTEMPTS -> status = queued; sent = false
    :: else -> status = failed
    fi
}

inline take_away() {
    assert(!(here[locked_by] && lease_stands));
#ifndef MISTAKE_EPOCH_STANDS_STILL
    lease_epoch++;
#endif
    verdict();
    unlock()
}

#ifdef MISTAKE_FINISH_BY_KEY
#define IS_OURS (status == processing)
#elif defined(MISTAKE_FINISH_WITHOUT_NAME)
#define IS_OURS (status == processing && lease_epoch == epoch)
#elif defined(MISTAKE_FINISH_WITHOUT_EPOCH)
#define IS_OURS (status == processing && locked_by == me)
#else
#define IS_OURS (status == processing && lease_epoch == epoch && locked_by == me)
#endif

#if defined(MISTAKE_OLDER_LEASE_KEPT) || defined(NO_FAILOVER)
#define IS_LATEST true
#else
#define IS_LATEST (latest[me] == thread)
#endif

inline forget_lease() {
    has_lease = false;
    has_beat = false;
    epoch = 0;
    if
    :: latest[me] == thread -> latest[me] = NOBODY
    :: else
    fi
}

/* One thread of a worker. */
proctype Worker(byte me; byte thread) {
    byte epoch = 0;   /* of its lease */
    bool has_lease = false;
    bool has_beat = false;

end:
    do
    :: !alive[me] -> break

    :: atomic { alive[me] && !has_lease && status == queued && message ->
        message = false;
        epoch_before = lease_epoch;
        attempts_before = attempt_count;
        claim_may_be_lost = true;
        status = processing;
        locked_by = me;
#ifndef MISTAKE_EPOCH_STANDS_STILL
        lease_epoch++;
#endif
        attempt_count++;
        lease_stands = true;
        if
        :: has_lease = true; epoch = lease_epoch; rightful = thread; latest[me] = thread
        :: faults > 0 -> faults--; rightful = NOBODY; latest[me] = NOBODY
        fi }

    /* A duplicate of a message, or a late one: the claim is refused. */
    :: atomic { alive[me] && !has_lease && message && status != queued -> message = false }

    /* The next try of a claim finds the one whose answer was lost. */
    :: atomic { alive[me] && !has_lease && locked_by == me && latest[me] == NOBODY ->
        has_lease = true;
        epoch = lease_epoch;
        rightful = thread;
        latest[me] = thread }

    /* Heartbeat. */
    :: atomic { alive[me] && has_lease && !has_beat ->
        if
        :: IS_LATEST && IS_OURS ->
            assert(rightful == thread);
            has_beat = true;
            lease_stands = true;
            claim_may_be_lost = false;
            epoch_before = 0;
            attempts_before = 0
        :: else -> forget_lease()
        fi }

    /* Finish; fail; release. What is not ours is left alone, and the worker is told. */
    :: atomic { alive[me] && has_lease ->
        if
        :: IS_LATEST && IS_OURS ->
            assert(rightful == thread);
            if
            :: status = success
            :: verdict()
            :: faults > 0 -> faults--; status = queued; attempt_count--; sent = false
            fi;
            unlock()
        :: else
        fi;
        forget_lease() }

    /* A thread that hangs for good, in a process that lives on. */
    :: atomic { me == 1 && alive[me] && has_lease && faults > 0 -> faults--; break }

    /* Its heart takes the presence lock again when it has lost it. */
    :: atomic { alive[me] && !here[me] && !watched[me] -> here[me] = true }
    od
}

proctype Reaper() {
end:
    do
#ifdef MISTAKE_READ_THEN_WRITE
    :: status == processing && !lease_stands ->
        atomic { lease_epoch++; verdict(); unlock() }
#elif defined(MISTAKE_REAP_BY_AGE)
    :: atomic { status == processing -> take_away() }
#elif !defined(MISTAKE_NO_REAPER)
    :: atomic { status == processing && !lease_stands -> take_away() }
#else
    :: lease_epoch > 100 -> skip   /* never */
#endif
    od
}

/* Tries the presence lock of a worker; under it, takes back what the worker held. */
proctype Watcher() {
    byte gone;
end:
    do
    :: atomic { status == processing && !here[locked_by] && !watched[locked_by] ->
#ifndef MISTAKE_LOOK_THEN_TAKE
        watched[locked_by] = true;
#endif
        gone = locked_by };
        atomic {
            if
            :: status == processing && locked_by == gone -> take_away()
            :: else
            fi;
            watched[gone] = false }
    od
}

proctype Operator() {
end:
    do
    :: atomic { faults > 0 && status == processing ->
        faults--;
        lease_epoch++;
        status = cancelled;
        unlock() }
    :: atomic { faults > 0 && (status == processing || status == failed || status == cancelled) ->
        faults--;
        lease_epoch++;
        attempt_count = 0;
        status = queued;
        sent = false;
        unlock() }
    od
}

/* Sends what is due and was not sent lately. */
proctype Dispatcher() {
end:
    do
    :: atomic { status == queued && !sent -> message = true; sent = true }
    od
}

/* Leases run out, and what was sent counts as not sent again. */
proctype Time() {
end:
    do
    :: atomic { status == processing && lease_stands -> lease_stands = false }
#ifndef MISTAKE_SENT_ONCE
    :: atomic { status == queued && sent && !message -> sent = false }
#endif
    od
}

proctype World() {
end:
    do
    /* kill -9: the kernel closes the sockets, and the lock is free. */
    :: atomic { faults > 0 -> faults--; alive[1] = false; here[1] = false }
    /* A host without power: the lock is held until the server notices. */
    :: atomic { faults > 0 -> faults--; alive[1] = false }
    :: atomic { !alive[1] && here[1] -> here[1] = false }
    /* An operator or a pooler cuts all sessions of a worker that lives on. */
    :: atomic { faults > 0 -> faults--; here[1] = false }
    :: atomic { faults > 0 -> faults--; here[2] = false }
#ifndef NO_FAILOVER
    /* A standby takes over that has not heard of the last claim. All sessions end. */
    :: atomic { faults > 0 && status == processing && claim_may_be_lost ->
        faults--;
        status = queued;
        lease_epoch = epoch_before;
        attempt_count = attempts_before;
        sent = false;
        unlock();
        here[1] = false;
        here[2] = false }
#endif
    :: atomic { faults > 0 && message -> faults--; message = false }
    od
}

init {
    atomic {
        run Worker(1, 1);
        run Worker(1, 2);
        run Worker(2, 3);
        run Reaper();
        run Watcher();
        run Operator();
        run Dispatcher();
        run Time();
        run World()
    }
}

/* A finished job stays finished: nobody takes it, nobody runs it again. */
ltl finished_stays_finished { [] (status == success -> [] (status == success)) }

/* Every job ends, as long as each process that can move does so in the end. */
ltl every_job_ends { <> ENDED }
