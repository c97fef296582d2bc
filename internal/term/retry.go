package term

import "time"

// MaxTroubled is how many of one kind the API server may refuse for good before others of it are tried one at a time, with
// pauses of FirstTry to LastTry.
const (
	MaxTroubled = 16
	FirstTry    = 5 * time.Second
	LastTry     = time.Minute
)

// NextPause is the pause after a pause, 0 if there was none.
func NextPause(pause time.Duration) time.Duration { return min(max(2*pause, FirstTry), LastTry) }

// leastRetry and mostRetry bound how long nothing is tried again for one that failed.
const (
	leastRetry = 50 * time.Millisecond
	mostRetry  = 30 * time.Second
)

// together is how far apart those moments are at which all are tried again that have waited for a while: so any number of
// them costs a look in that time. Of those that have waited less, any number costs a look in their delay, or in soon.
const (
	together = 10 * time.Second
	soon     = time.Second
)

// RetryDelay is how long one waits that failed so many times in a row.
func RetryDelay(failures int) time.Duration {
	return min(leastRetry<<min(failures, 10), mostRetry)
}

// NextTry is when one is tried again that failed so many times in a row, of a kind of which others have. What the API
// server refuses for good is not tried again in a moment, nor is one of which so many others fail that the rest of the kind
// is tried one at a time.
func NextTry(now time.Time, failures, others int, err error) time.Time {
	delay := RetryDelay(failures)
	if RefusedForGood(err) {
		delay = min(FirstTry<<min(failures, 10), mostRetry)
	}
	if others >= MaxTroubled {
		delay = mostRetry
	}
	return Later(now, delay+time.Duration(others)*time.Second)
}

// Later is when one is looked at again after a delay: the first of the moments after it that are for all that wait about as long.
func Later(now time.Time, delay time.Duration) time.Time {
	if delay < together {
		return next(now.Add(delay), min(delay, soon))
	}
	return Together(now.Add(delay))
}

// Together is the first of the moments that are for all, from a time on at which one is to be tried.
func Together(at time.Time) time.Time { return next(at, together) }

// next is the first moment from a time on that is a multiple of a duration since the zero time. The moments go by the wall clock,
// and the wait for one by the clock that cannot be set.
func next(at time.Time, apart time.Duration) time.Time {
	if over := at.Sub(at.Truncate(apart)); over > 0 {
		return at.Add(apart - over)
	}
	return at
}
