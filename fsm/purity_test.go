package fsm

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestPurity reads the sources of the state machine: what could make two
// replicas differ, or touch the world, is not in them.
func TestPurity(t *testing.T) {
	var files []string
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			files = append(files, name)
		}
	}
	if len(files) < 10 {
		t.Fatalf("only %d files of package fsm were found", len(files))
	}
	p := parsePackage(t, "fencepost/fsm", files)
	for _, found := range p.impurities() {
		t.Error(found)
	}
}

// TestPurityOfMessages: the generated code is what the generator makes; only
// what it imports is looked at.
func TestPurityOfMessages(t *testing.T) {
	allowed := []string{
		"reflect", "sync", "unsafe", "google.golang.org/protobuf/reflect/protoreflect", "google.golang.org/protobuf/runtime/protoimpl",
	}
	files, err := filepath.Glob("fsmpb/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files of package fsmpb, error %v", len(files), err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			if path := importPath(i); !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s", file, path)
			}
		}
	}
}

// TestPurityLooksAtEverything: the looker finds each thing that it is there for,
// and nothing in code that has none of them.
func TestPurityLooksAtEverything(t *testing.T) {
	cases := map[string]string{ // source to what is found in it
		`import "time"; var _ = time.Now`:                                           "imports time",
		`import r "math/rand"; var _ = r.Int`:                                       "imports math/rand",
		`import "math/rand/v2"; var _ = rand.Int`:                                   "imports math/rand/v2",
		`import "crypto/rand"; var _ = rand.Read`:                                   "imports crypto/rand",
		`import "os"; var _ = os.Exit`:                                              "imports os",
		`import "net/http"; var _ = http.Get`:                                       "imports net/http",
		`import "sync"; var _ sync.Mutex`:                                           "imports sync",
		`func f() { go f() }`:                                                       "starts a goroutine",
		`func f(c chan int) { select { case <-c: default: } }`:                      "selects",
		`func f(m map[string]int) { for range m {} }`:                               "ranges over a map",
		`type m map[string]int; func f() { for k := range (m{}) { _ = k } }`:        "ranges over a map",
		`type s struct { m map[int]int }; func f(p *s) { for k := range p.m {_=k}}`: "ranges over a map",
		`func f[M ~map[int]int](m M) { for range m {} }`:                            "ranges over a map",
		`import "maps"; func f(m map[int]int) { for range maps.Keys(m) {} }`:        "imports maps",
		`func f(a, b uint64) bool { return float64(a)/3 > float64(b) }`:             "computes with float64",
		`func init() {}`:  "has an init",
		`var counter = 1`: "has the variable counter",
		`import "errors"; var ErrX = errors.New("x")`:                                                                  "",
		`func f(m map[string]int, s []int) int { for _, i := range s { m["a"] += i }; for range 3 {}; return m["b"] }`: "",
	}
	for source, want := range cases {
		file := filepath.Join(t.TempDir(), "snippet.go")
		if err := os.WriteFile(file, []byte("package snippet\n"+source), 0o644); err != nil {
			t.Fatal(err)
		}
		found := strings.Join(parsePackage(t, "snippet", []string{file}).impurities(), "\n")
		if want == "" && found != "" {
			t.Errorf("%s\nhas none of it, found %s", source, found)
		} else if !strings.Contains(found, want) {
			t.Errorf("%s\nfound %q, want %q", source, found, want)
		}
	}
}

// A parsedPackage is source with its types.
type parsedPackage struct {
	fset  *token.FileSet
	files []*ast.File
	info  *types.Info
}

func parsePackage(t *testing.T, path string, files []string) *parsedPackage {
	t.Helper()
	p := &parsedPackage{fset: token.NewFileSet(), info: &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{},
	}}
	imports := []string{}
	for _, file := range files {
		f, err := parser.ParseFile(p.fset, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		p.files = append(p.files, f)
		for _, i := range f.Imports {
			imports = append(imports, importPath(i))
		}
	}
	config := types.Config{Importer: importer.ForCompiler(p.fset, "gc", compiled(t, imports))}
	if _, err := config.Check(path, p.fset, p.files, p.info); err != nil {
		t.Fatal(err)
	}
	return p
}

// compiled finds what the compiler wrote about these packages.
func compiled(t *testing.T, imports []string) importer.Lookup {
	if len(imports) == 0 {
		return nil
	}
	args := append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, imports...)
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = file
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
}

func importPath(i *ast.ImportSpec) string {
	path, _ := strconv.Unquote(i.Path.Value)
	return path
}

// impurities is everything in the package that a pure function must not have.
func (p *parsedPackage) impurities() (found []string) {
	banned := []string{
		"time", "math/rand", "crypto/rand", "os", "net", "sync", "runtime", "syscall", "unsafe", "log", "context", "maps",
	}
	report := func(at token.Pos, format string, args ...any) {
		found = append(found, fmt.Sprintf("%s: %s", p.fset.Position(at), fmt.Sprintf(format, args...)))
	}
	for _, f := range p.files {
		for _, i := range f.Imports {
			path := importPath(i)
			if slices.ContainsFunc(banned, func(b string) bool { return path == b || strings.HasPrefix(path, b+"/") }) {
				report(i.Pos(), "imports %s", path)
			}
		}
		for _, d := range f.Decls {
			p.lookAtDeclaration(d, report)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				report(n.Pos(), "starts a goroutine")
			case *ast.SelectStmt:
				report(n.Pos(), "selects")
			case *ast.RangeStmt:
				if isMap(p.info.TypeOf(n.X)) {
					report(n.Pos(), "ranges over a map")
				}
			case ast.Expr:
				if b, ok := underlying(p.info.TypeOf(n)).(*types.Basic); ok && b.Info()&(types.IsFloat|types.IsComplex) != 0 {
					report(n.Pos(), "computes with %s, which processors may round differently", b)
				}
			}
			return true
		})
	}
	return found
}

// lookAtDeclaration finds what runs before, or outlives, a call of Apply.
func (p *parsedPackage) lookAtDeclaration(d ast.Decl, report func(at token.Pos, format string, args ...any)) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.Name == "init" && d.Recv == nil {
			report(d.Pos(), "has an init")
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			v, ok := spec.(*ast.ValueSpec)
			if !ok || d.Tok != token.VAR {
				continue
			}
			for _, name := range v.Names {
				if o := p.info.Defs[name]; name.Name != "_" && (o == nil || o.Type().String() != "error") {
					report(name.Pos(), "has the variable %s", name.Name)
				}
			}
		}
	}
}

func underlying(t types.Type) types.Type {
	if t == nil {
		return nil
	}
	return t.Underlying()
}

// isMap also knows a type parameter all of whose types are maps.
func isMap(t types.Type) bool {
	if p, ok := t.(*types.TypeParam); ok {
		union, isMaps := p.Constraint().Underlying().(*types.Interface), false
		for i := range union.NumEmbeddeds() {
			if u, ok := union.EmbeddedType(i).(*types.Union); ok {
				for j := range u.Len() {
					isMaps = isMaps || isMap(u.Term(j).Type())
				}
			} else {
				isMaps = isMaps || isMap(union.EmbeddedType(i))
			}
		}
		return isMaps
	}
	_, ok := underlying(t).(*types.Map)
	return ok
}
