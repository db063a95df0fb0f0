// histories FILE...: judges histories of concurrent clients with porcupine; one line of JSON per history. With -pictures DIR, what is not
// linearizable is drawn there. Exit status 0 if all hold, 1 if not, 2 if a file is no history.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/anishathalye/porcupine"
)

type line struct {
	File         string `json:"file"`
	Linearizable string `json:"linearizable,omitempty"`
	Session      string `json:"session,omitempty"`
	Picture      string `json:"picture,omitempty"`
	Error        string `json:"error,omitempty"`
}

var words = map[porcupine.CheckResult]string{porcupine.Ok: "ok", porcupine.Illegal: "illegal", porcupine.Unknown: "undecided"}

func judge(path, pictures string, within time.Duration) (told line, holds bool) {
	told.File = path
	h, operations, err := read(path)
	if err == nil && len(h.Keys) > mostKeys {
		err = fmt.Errorf("%d keys; at most %d are allowed", len(h.Keys), mostKeys)
	}
	if err != nil {
		told.Error = err.Error()
		return told, false
	}
	model, judged := linearizable(h, operations)
	verdict := porcupine.CheckOperationsTimeout(model, judged, within)
	told.Linearizable, told.Session = words[verdict], "ok"
	order := porcupine.Ok
	if h.Kind == "zookeeper" {
		of, reads := sessions(h, operations)
		order = porcupine.CheckOperationsTimeout(of, reads, within)
		told.Session = words[order]
	}
	if verdict == porcupine.Illegal && pictures != "" {
		_, info := porcupine.CheckOperationsVerbose(model, judged, within)
		picture := filepath.Join(pictures, filepath.Base(path)+".html")
		if err := porcupine.VisualizePath(model, info, picture); err == nil {
			told.Picture = picture
		}
	}
	return told, verdict == porcupine.Ok && order == porcupine.Ok
}

func main() {
	pictures := flag.String("pictures", "", "where to draw what is not linearizable")
	within := flag.Duration("within", 60*time.Second, "longest search for an order, per history")
	flag.Parse()
	status := 0
	out := json.NewEncoder(os.Stdout)
	for _, path := range flag.Args() {
		told, holds := judge(path, *pictures, *within)
		if !holds {
			status = max(status, 1)
		}
		if told.Error != "" {
			status = 2
		}
		if err := out.Encode(told); err != nil {
			os.Exit(3)
		}
	}
	os.Exit(status)
}
