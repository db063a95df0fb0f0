package main

import (
	"sort"

	"github.com/anishathalye/porcupine"
)

// What one session sees never goes back; the rules are told in crates/atoll-judge/src/session.rs. A session's operations are done in the
// order in which they were called: its history has one order only, which porcupine walks.

type change struct {
	zxid    int64
	deleted bool
	value   int64
}

type known struct {
	changes      [mostKeys][]change
	maybeDeleted [mostKeys]bool
}

type seenKey struct {
	zxid int64
	away bool
}

type seen struct {
	zxid   int64
	newest int64
	keys   [mostKeys]seenKey
}

func gather(h *head, operations []*operation) *known {
	k := &known{}
	for key, r := range h.Initial {
		if r != nil {
			k.changes[key] = append(k.changes[key], change{zxid: r[2], value: r[0]})
		}
	}
	for _, o := range operations {
		if o.Result != nil && o.Result.Refused != nil {
			continue
		}
		stamped := o.Result != nil && o.Result.Ok.Stamp != nil
		for _, s := range o.Steps {
			switch {
			case s.what == "put" && s.owner != 0, s.what == "delete" && !stamped:
				k.maybeDeleted[s.key] = true
			}
			if !stamped || s.what != "put" && s.what != "delete" {
				continue
			}
			c := change{zxid: *o.Result.Ok.Stamp, deleted: s.what == "delete", value: s.value}
			list := k.changes[s.key]
			// Of several in one transaction the last one counts.
			if n := len(list); n > 0 && list[n-1].zxid == c.zxid {
				list[n-1] = c
			} else {
				k.changes[s.key] = append(list, c)
			}
		}
	}
	for key := range k.changes {
		list := k.changes[key]
		sort.SliceStable(list, func(a, b int) bool { return list[a].zxid < list[b].zxid })
	}
	return k
}

// The last change of a key that is not later than a zxid.
func (k *known) upTo(key int, zxid int64) *change {
	var last *change
	for n := range k.changes[key] {
		if k.changes[key][n].zxid <= zxid {
			last = &k.changes[key][n]
		}
	}
	return last
}

func (s *seen) read(k *known, key int, row *row) bool {
	last, least := s.keys[key], k.upTo(key, s.newest)
	if row == nil {
		s.keys[key].away = true
		if least == nil || least.deleted || k.maybeDeleted[key] {
			return true
		}
		for _, c := range k.changes[key] {
			if c.deleted && c.zxid >= least.zxid {
				return true
			}
		}
		return false
	}
	zxid := row[2]
	if zxid < last.zxid || last.away && zxid == last.zxid || least != nil && zxid < least.zxid {
		return false
	}
	for _, c := range k.changes[key] {
		if c.zxid == zxid && (c.deleted || c.value != row[0]) {
			return false
		}
	}
	s.newest = max(s.newest, zxid)
	s.keys[key] = seenKey{zxid: zxid}
	return true
}

func (s seen) after(k *known, o *operation) (bool, seen) {
	if o.Zxid != nil {
		if *o.Zxid < s.zxid {
			return false, s
		}
		s.zxid = *o.Zxid
	}
	if o.Result.Ok == nil || o.Result.Ok.Outs == nil {
		return true, s
	}
	for n, step := range o.Steps {
		switch {
		case step.what == "get":
			var found *row
			if o.Result.Ok.Outs[n] != nil {
				found = o.Result.Ok.Outs[n].Row
			}
			if !s.read(k, step.key, found) {
				return false, s
			}
		case (step.what == "put" || step.what == "delete") && o.Result.Ok.Stamp != nil:
			stamp := *o.Result.Ok.Stamp
			s.newest = max(s.newest, stamp)
			s.keys[step.key] = seenKey{zxid: stamp, away: step.what == "delete"}
		}
	}
	return true, s
}

func sessions(h *head, operations []*operation) (porcupine.Model, []porcupine.Operation) {
	all := gather(h, operations)
	model := porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			by := map[uint64][]porcupine.Operation{}
			for _, o := range history {
				session := o.Input.(*operation).Session
				by[session] = append(by[session], o)
			}
			var parts [][]porcupine.Operation
			for _, part := range by {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() interface{} { return seen{} },
		Step: func(state, input, _ interface{}) (bool, interface{}) {
			return state.(seen).after(all, input.(*operation))
		},
		DescribeOperation: func(input, _ interface{}) string { return describe(input.(*operation)) },
	}
	var judged []porcupine.Operation
	sort.SliceStable(operations, func(a, b int) bool { return operations[a].Call < operations[b].Call })
	for n, o := range operations {
		if o.Result != nil {
			// Requests that a client sends without waiting are done in their order.
			judged = append(judged, porcupine.Operation{ClientId: o.Client, Input: o, Call: int64(2 * n), Return: int64(2*n + 1)})
		}
	}
	return model, judged
}
