package client

import "time"

// instant is one reading of both clocks of this process. Neither is enough: the
// monotonic clock stands still while a machine is suspended, and the wall clock can
// be set back. What has ended by either of them has ended.
type instant struct {
	mono time.Time // compared by its monotonic reading
	wall time.Time // has none
}

func readClocks() instant {
	t := time.Now()
	return instant{mono: t, wall: t.Round(0)}
}

func (i instant) add(d time.Duration) instant {
	return instant{mono: i.mono.Add(d), wall: i.wall.Add(d)}
}

// reached says whether, at i, the end has come.
func (i instant) reached(end instant) bool {
	return !i.mono.Before(end.mono) || !i.wall.Before(end.wall)
}

// until is how long it is to the end by the clock that reaches it first.
func (i instant) until(end instant) time.Duration {
	return min(end.mono.Sub(i.mono), end.wall.Sub(i.wall))
}
