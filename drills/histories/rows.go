package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Most keys of a history: a state is compared by value.
const mostKeys = 16

// The version that a write of unknown outcome left in a table, until somebody reads it.
const unbound = -1

type cell struct {
	there   bool
	value   int64
	version int64
	owner   uint64
}

type rows struct {
	cells [mostKeys]cell
	keys  int
	last  int64
}

func (r *rows) hold(key int, e expect) string {
	c := r.cells[key]
	switch {
	case e.what == "any":
		return ""
	case e.what == "absent":
		if c.there {
			return "exists"
		}
		return ""
	case !c.there:
		return "absent"
	case e.what == "version" && c.version != e.version:
		return "version"
	}
	return ""
}

// One step: whether it agrees with what it answered (known says whether that is known), and why it is refused.
func (r *rows) one(kind string, s step, stamp *int64, known bool, answer *out) (bool, string) {
	switch s.what {
	case "get":
		c := &r.cells[s.key]
		if !known {
			return true, ""
		}
		if answer == nil || !c.there {
			return answer == nil && !c.there, ""
		}
		if answer.Row == nil {
			return false, ""
		}
		if c.version == unbound && c.value == answer.Row[0] {
			c.version = answer.Row[1]
		}
		return c.value == answer.Row[0] && c.version == answer.Row[1], ""
	case "list":
		var there []int
		for k := 0; k < r.keys; k++ {
			if r.cells[k].there {
				there = append(there, k)
			}
		}
		return !known || answer != nil && answer.Keys != nil && fmt.Sprint(there) == fmt.Sprint(*answer.Keys), ""
	case "close":
		for k := range r.cells {
			if r.cells[k].there && r.cells[k].owner == s.session {
				r.cells[k] = cell{}
			}
		}
		return true, ""
	}
	if why := r.hold(s.key, s.expect); why != "" {
		return true, why
	}
	switch s.what {
	case "delete":
		r.cells[s.key] = cell{}
	case "put":
		old := r.cells[s.key]
		next := cell{there: true, value: s.value, owner: s.owner}
		if old.there {
			next.owner = old.owner
		}
		switch {
		case kind == "table" && stamp != nil:
			next.version = *stamp
		case kind == "table":
			next.version = unbound
		case old.there:
			next.version = old.version + 1
		}
		r.cells[s.key] = next
		if known && answer != nil && answer.Version != nil {
			return *answer.Version == next.version, ""
		}
	}
	return true, ""
}

func (r rows) after(kind string, o *operation) (bool, rows) {
	before, next := r, r
	var outs []*out
	var stamp *int64
	if o.Result != nil && o.Result.Ok != nil {
		outs, stamp = o.Result.Ok.Outs, o.Result.Ok.Stamp
	}
	refusedAt, because := -1, ""
	for n, s := range o.Steps {
		var answer *out
		if outs != nil {
			answer = outs[n]
		}
		agrees, why := next.one(kind, s, stamp, outs != nil, answer)
		if !agrees {
			return false, before
		}
		if why != "" {
			refusedAt, because = n, why
			break
		}
	}
	switch {
	case o.Result == nil && refusedAt >= 0:
		return true, before
	case o.Result == nil:
		return true, next
	case o.Result.Refused != nil:
		refused := o.Result.Refused
		agrees := refusedAt >= 0 && (refused.At == nil || *refused.At == refusedAt) && (refused.Why == nil || *refused.Why == because)
		return agrees, before
	case refusedAt >= 0:
		return false, before
	}
	if stamp != nil && o.writes() {
		if *stamp <= next.last {
			return false, before
		}
		next.last = *stamp
	}
	return true, next
}

func describe(o *operation) string {
	var words []string
	for _, s := range o.Steps {
		word := s.what
		switch s.what {
		case "get":
			word = fmt.Sprintf("get %d", s.key)
		case "close":
			word = fmt.Sprintf("close %d", s.session)
		case "check", "delete":
			word = fmt.Sprintf("%s %d if %s %d", s.what, s.key, s.expect.what, s.expect.version)
		case "put":
			word = fmt.Sprintf("put %d=%d if %s %d", s.key, s.value, s.expect.what, s.expect.version)
		}
		words = append(words, word)
	}
	return fmt.Sprintf("line %d: %s -> %s", o.line, strings.Join(words, ", "), result(o))
}

func result(o *operation) string {
	switch {
	case o.Result == nil:
		return "unknown"
	case o.Result.Refused != nil:
		return "refused"
	}
	var words []string
	for _, a := range o.Result.Ok.Outs {
		switch {
		case a == nil:
			words = append(words, "-")
		case a.Row != nil:
			words = append(words, fmt.Sprintf("%d (version %d)", a.Row[0], a.Row[1]))
		case a.Keys != nil:
			words = append(words, fmt.Sprint(*a.Keys))
		case a.Version != nil:
			words = append(words, fmt.Sprintf("version %d", *a.Version))
		}
	}
	return strings.Join(words, ", ")
}

// The rows, and the operations that are judged in real time.
func linearizable(h *head, operations []*operation) (porcupine.Model, []porcupine.Operation) {
	first := rows{keys: len(h.Keys), last: math.MinInt64}
	for k, r := range h.Initial {
		if r != nil {
			first.cells[k] = cell{there: true, value: r[0], version: r[1]}
		}
	}
	model := porcupine.Model{
		Init: func() interface{} { return first },
		Step: func(state, input, _ interface{}) (bool, interface{}) {
			return state.(rows).after(h.Kind, input.(*operation))
		},
		Hash: func(state interface{}) uint64 {
			r := state.(rows)
			hash := uint64(r.last)
			for _, c := range r.cells[:r.keys] {
				hash = hash*0x9e3779b97f4a7c15 + uint64(c.value)*31 + uint64(c.version)
			}
			return hash
		},
		DescribeOperation: func(input, _ interface{}) string { return describe(input.(*operation)) },
		DescribeState: func(state interface{}) string {
			r := state.(rows)
			var words []string
			for k := 0; k < r.keys; k++ {
				if c := r.cells[k]; c.there {
					words = append(words, fmt.Sprintf("%s=%d (version %d)", h.Keys[k], c.value, c.version))
				}
			}
			return strings.Join(words, " ")
		},
	}
	var judged []porcupine.Operation
	for _, o := range operations {
		if o.Plain || o.Result == nil && !o.writes() {
			continue
		}
		end := int64(math.MaxInt64)
		if o.Result != nil {
			end = *o.Return
		}
		judged = append(judged, porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: end})
	}
	return model, judged
}
