package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// The format is told in crates/atoll-judge/src/history.rs.

type head struct {
	Kind    string   `json:"kind"`
	Keys    []string `json:"keys"`
	Initial []*row   `json:"initial"`
}

// Value, version, zxid.
type row [3]int64

type operation struct {
	Client  int      `json:"client"`
	Session uint64   `json:"session"`
	Call    int64    `json:"call"`
	Return  *int64   `json:"return"`
	Plain   bool     `json:"plain"`
	Steps   []step   `json:"do"`
	Result  *outcome `json:"result"`
	Zxid    *int64   `json:"zxid"`
	line    int
}

type expect struct {
	what    string // any, absent, present, version
	version int64
}

type step struct {
	what    string // get, list, check, put, delete, close
	key     int
	value   int64
	expect  expect
	owner   uint64 // 0: none
	session uint64
}

type outcome struct {
	Ok *struct {
		Outs  []*out `json:"outs"`
		Stamp *int64 `json:"stamp"`
	} `json:"ok"`
	Refused *struct {
		At  *int    `json:"at"`
		Why *string `json:"why"`
	} `json:"refused"`
}

type out struct {
	Row     *row   `json:"row"`
	Keys    *[]int `json:"keys"`
	Version *int64 `json:"version"`
}

func (s step) writes() bool {
	return s.what == "put" || s.what == "delete" || s.what == "close"
}

func (o *operation) writes() bool {
	for _, s := range o.Steps {
		if s.writes() {
			return true
		}
	}
	return false
}

func (e *expect) UnmarshalJSON(raw []byte) error {
	if raw[0] == '"' {
		return json.Unmarshal(raw, &e.what)
	}
	var named struct {
		Version *int64 `json:"version"`
	}
	if err := json.Unmarshal(raw, &named); err != nil {
		return err
	}
	if named.Version == nil {
		return fmt.Errorf("no expectation: %s", raw)
	}
	e.what, e.version = "version", *named.Version
	return nil
}

// Reads the elements of a JSON array into as many targets.
func elements(raw []byte, targets ...any) error {
	var parts []json.RawMessage
	if err := json.Unmarshal(raw, &parts); err != nil {
		return err
	}
	if len(parts) != len(targets) {
		return fmt.Errorf("%d elements where %d were due: %s", len(parts), len(targets), raw)
	}
	for n, part := range parts {
		if err := json.Unmarshal(part, targets[n]); err != nil {
			return err
		}
	}
	return nil
}

func (s *step) UnmarshalJSON(raw []byte) error {
	if raw[0] == '"' {
		return json.Unmarshal(raw, &s.what)
	}
	var named map[string]json.RawMessage
	if err := json.Unmarshal(raw, &named); err != nil {
		return err
	}
	for what, body := range named {
		s.what = what
		switch what {
		case "get":
			return json.Unmarshal(body, &s.key)
		case "close":
			return json.Unmarshal(body, &s.session)
		case "check", "delete":
			return elements(body, &s.key, &s.expect)
		case "put":
			var owner *uint64
			if err := elements(body, &s.key, &s.value, &s.expect, &owner); err != nil {
				return err
			}
			if owner != nil {
				s.owner = *owner
			}
			return nil
		}
	}
	return fmt.Errorf("no step: %s", raw)
}

func read(path string) (*head, []*operation, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, 16<<20)
	var first *head
	var operations []*operation
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if first == nil {
			first = &head{}
			err = json.Unmarshal(lines.Bytes(), first)
		} else {
			o := &operation{line: n}
			err = json.Unmarshal(lines.Bytes(), o)
			operations = append(operations, o)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if first == nil {
		return nil, nil, fmt.Errorf("it is empty")
	}
	return first, operations, nil
}
