package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// The tables of this file are the vocabulary that the code does not use, with what to write instead. A word comes here
// when a standard term replaces it: what is here cannot return.

// retiredParts are words that no identifier has as one of its parts. A part begins with a capital letter: the parts of
// gateOfCluster are gate, of and Cluster. A key of several words stands for consecutive parts.
var retiredParts = map[string]string{
	"abroad":     "inOtherNamespace",
	"anew":       "again, recreate",
	"anybody":    "any, or the object that is meant",
	"apart":      "excluded, separate",
	"contest":    "takeover, conflict",
	"crowd":      "overflow, or what there are many of",
	"crowded":    "full, overflow",
	"elder":      "older",
	"elders":     "older",
	"errand":     "request",
	"errands":    "requests",
	"fresh":      "new, unused, notYetInCache",
	"gate":       "clusterState, admission",
	"gates":      "clusterStates, admission",
	"gave back":  "returned, released",
	"give back":  "return, release",
	"given back": "returned, released",
	"gives back": "returns, releases",
	"hear":       "receive, observe",
	"heard":      "received, observed",
	"lack":       "shortfall, missing",
	"lacking":    "shortfall, missing",
	"lacks":      "shortfall, missing",
	"lean":       "trimmed",
	"let go":     "release, removeFinalizer",
	"lets go":    "releases, removesFinalizer",
	"look":       "get, read, check, lookup",
	"looked":     "read, checked",
	"looks":      "reads, checks",
	"mend":       "repair, fix",
	"mended":     "repaired, fixed",
	"news":       "changed, update",
	"nobody":     "none, or the object that is missing",
	"owed":       "pending",
	"owes":       "needs, pending",
	"remark":     "message, event",
	"remarks":    "messages, events",
	"ruling":     "admission, admissionResult",
	"rulings":    "admissions",
	"said":       "reported, published, condition",
	"say":        "report, setCondition, emitEvent",
	"says":       "reports, state, message",
	"shut":       "closed",
	"sighting":   "ownerSeen, observation",
	"sightings":  "observations",
	"slim":       "trimmed",
	"somebody":   "another controller, user, claim",
	"sooner":     "minWait, earlier",
	"stand":      "stay, keep",
	"standing":   "current",
	"stands":     "stays, stillValid",
	"stranger":   "foreign",
	"strangers":  "foreign",
	"tell":       "setCondition, emitEvent, enqueue",
	"tells":      "setsCondition, emitsEvent, enqueues",
	"tend":       "reconcile",
	"tends":      "reconciles",
	"told":       "published, recorded",
	"trouble":    "failure",
	"troubled":   "failing",
	"troubles":   "failures",
	"unheard":    "statusFailing",
	"unsaid":     "unpublished, conditionErr",
	"untold":     "unpublished",
	"vain":       "failed",
	"verdict":    "outcome, result, assessment",
	"verdicts":   "outcomes, results, assessments",
	"whoever":    "any, or the object that is meant",
	"whom":       "owner, holder, claimant, referrer",
	"whose":      "ownerOf, holderOf",
}

// retiredNames are words that no variable, constant, parameter or result of the product has as its whole name.
var retiredNames = map[string]string{
	"given":  "what is given: finalizers, addresses, handedOver",
	"has":    "ok, or what is there: addresses, labels",
	"is":     "ok, or what it is: condition, current, status",
	"it":     "what it is",
	"no":     "refusal, err",
	"ours":   "own, managed, ok",
	"theirs": "what the others have: otherLayout, apiClaims",
	"them":   "what they are",
	"they":   "what they are",
	"what":   "finding, message, argument, action",
	"who":    "owner, holder, claimant, referrer",
	"word":   "result, state, message",
	"words":  "results, states, messages",
}

// retiredPhrases are expressions that no comment and no string has.
var retiredPhrases = map[string]string{
	"anybody":    "any user, any client",
	"give back":  "return, release, delete",
	"given back": "returned, released, deleted",
	"gives back": "returns, releases, deletes",
	"let go":     "release; remove the finalizer",
	"lets go":    "releases; removes the finalizer",
	"looked at":  "read, checked, reconciled",
	"mend":       "repair, correct",
	"mended":     "repaired, corrected",
	"nobody":     "no user, no controller",
	"somebody":   "a user, another controller",
	"tell":       "report, set the condition, record an event",
	"tells":      "reports, sets the condition, records an event",
	"told":       "reported, published",
	"whoever":    "any client, the client that",
}

var (
	identifierPart = regexp.MustCompile(`[A-Z]+(?:[^a-z]|$)|[A-Z]?[a-z]+|[0-9]+`)
	phrase         = regexp.MustCompile(`(?i)\b(` + strings.Join(slices.Sorted(maps.Keys(retiredPhrases)), "|") + `)\b`)
	testFunction   = regexp.MustCompile(`^(Test|Fuzz|Benchmark|Example)`)
)

// TestRetiredWords checks that identifiers, comments and strings use the terms of the field and not the words that the
// project once had for them.
func TestRetiredWords(t *testing.T) {
	root, files := framework.RepoRootForTest(t), 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && path != root && (name == "bin" || strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		isTest := strings.HasSuffix(path, "_test.go") || strings.HasPrefix(name, "test/") || strings.HasPrefix(name, "hack/")
		if entry.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		files++
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil || ast.IsGenerated(file) {
			return err
		}
		// This file quotes the words.
		for _, w := range retiredWords(file, !isTest, name != "test/docs/retiredwords_test.go") {
			t.Errorf("%s:%d: %s", name, fset.Position(w.pos).Line, w.message)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 900 {
		t.Errorf("only %d files were checked", files)
	}
}

// retiredWord is a use of a retired word.
type retiredWord struct {
	pos     token.Pos
	message string
}

// retiredWords returns the retired words of a file in the order of their positions. checksNames is true for code where
// retiredNames applies, and checksStrings where the strings count.
func retiredWords(file *ast.File, checksNames, checksStrings bool) (out []retiredWord) {
	for _, d := range declarations(file) {
		if word, instead := retiredInIdentifier(d.ident.Name, d.isValue && checksNames); word != "" {
			out = append(out, retiredWord{d.ident.Pos(), fmt.Sprintf("the identifier %s has the retired word %q; write %s", d.ident.Name, word, instead)})
		}
	}
	for _, group := range file.Comments {
		out = append(out, retiredInComment(group)...)
	}
	if checksStrings {
		ast.Inspect(file, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if found := strings.ToLower(phrase.FindString(l.Value)); found != "" {
					out = append(out, retiredWord{l.Pos(), fmt.Sprintf("the string has the retired words %q; write %s", found, retiredPhrases[found])})
				}
			}
			return true
		})
	}
	slices.SortStableFunc(out, func(a, b retiredWord) int { return int(a.pos - b.pos) })
	return out
}

// retiredInIdentifier returns the first retired word of an identifier, and what to write instead. isValue is true for
// variables, constants, parameters and results.
func retiredInIdentifier(name string, isValue bool) (word, instead string) {
	if instead, retired := retiredNames[name]; retired && isValue {
		return name, instead
	}
	parts := " " + strings.ToLower(strings.Join(identifierParts(name), " ")) + " "
	parts = strings.ReplaceAll(parts, " look up ", " lookup ")
	for _, word := range slices.Sorted(maps.Keys(retiredParts)) {
		if strings.Contains(parts, " "+word+" ") {
			return word, retiredParts[word]
		}
	}
	return "", ""
}

// identifierParts splits an identifier: HTTPServer2 is HTTP, Server and 2.
func identifierParts(name string) (out []string) {
	for name != "" {
		at := identifierPart.FindStringIndex(name)
		if at == nil {
			break
		}
		end := at[1]
		if part := name[at[0]:end]; len(part) > 1 && strings.ToUpper(part) == part && end < len(name) { // the last capital letter begins the next part
			end--
		}
		out = append(out, name[at[0]:end])
		name = name[end:]
	}
	return out
}

// declaration is an identifier where it is declared.
type declaration struct {
	ident   *ast.Ident
	isValue bool
}

// declarations returns what a file declares, except test functions: packages that are imported under another name,
// types, functions, methods, fields, variables, constants, parameters, results, receivers and labels.
func declarations(file *ast.File) (out []declaration) {
	addName := func(id *ast.Ident) { out = append(out, declaration{ident: id}) }
	addValue := func(e ast.Expr) {
		if id, ok := e.(*ast.Ident); ok {
			out = append(out, declaration{id, true})
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv != nil || !testFunction.MatchString(n.Name.Name) {
				addName(n.Name)
			}
			addFields(n.Recv, addValue)
		case *ast.TypeSpec:
			addName(n.Name)
		case *ast.ImportSpec:
			if n.Name != nil {
				addName(n.Name)
			}
		case *ast.LabeledStmt:
			addName(n.Label)
		case *ast.InterfaceType:
			for _, m := range n.Methods.List {
				for _, id := range m.Names {
					addName(id)
				}
			}
		case *ast.StructType:
			for _, f := range n.Fields.List {
				for _, id := range f.Names {
					addName(id)
				}
			}
		case *ast.FuncType:
			addFields(n.Params, addValue)
			addFields(n.Results, addValue)
		case *ast.ValueSpec:
			for _, id := range n.Names {
				addValue(id)
			}
		case *ast.AssignStmt:
			for _, e := range n.Lhs {
				if n.Tok == token.DEFINE {
					addValue(e)
				}
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				addValue(n.Key)
				addValue(n.Value)
			}
		}
		return true
	})
	return out
}

// addFields calls add for each name of a list of parameters, results or receivers, which may be nil.
func addFields(list *ast.FieldList, add func(ast.Expr)) {
	if list == nil {
		return
	}
	for _, f := range list.List {
		for _, id := range f.Names {
			add(id)
		}
	}
}

// retiredInComment returns the retired phrases of a comment, also those that begin on one line and end on the next.
func retiredInComment(group *ast.CommentGroup) (out []retiredWord) {
	var text strings.Builder
	var positions []token.Pos // by byte of text
	for _, c := range group.List {
		at := c.Pos()
		for line := range strings.Lines(c.Text) {
			words := strings.TrimLeft(line, "/* \t")
			skipped := len(line) - len(words)
			for i := range len(words) {
				positions = append(positions, at+token.Pos(skipped+i))
			}
			text.WriteString(words)
			at += token.Pos(len(line))
		}
		text.WriteByte('\n')
		positions = append(positions, at)
	}
	normal := strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		return r
	}, text.String())
	for _, at := range phrase.FindAllStringIndex(normal, -1) {
		found := strings.ToLower(normal[at[0]:at[1]])
		out = append(out, retiredWord{positions[at[0]], fmt.Sprintf("the comment has the retired words %q; write %s", found, retiredPhrases[found])})
	}
	return out
}

// TestFindingRetiredWords checks what TestRetiredWords finds.
func TestFindingRetiredWords(t *testing.T) {
	const code = `package p

// x is looked
// at before it is given back.
func (r *T) letGoOf(theGate int) (is bool) {
	news, err := 1, 2
	for whose := range 3 { // nobody reads this
	}
	const island, investigate, HTTPSays, lookUp = 1, 2, 3, 4
	return r.Tell("somebody")
}

func (r *T) has() {}

func TestTells() {}
`
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "p.go", code, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, w := range retiredWords(file, true, true) {
		found = append(found, fmt.Sprintf("%d %s", fset.Position(w.pos).Line, strings.Split(w.message, `"`)[1]))
	}
	want := []string{"3 looked at", "4 given back", "5 let go", "5 gate", "5 is", "6 news", "7 whose", "7 nobody", "9 says", "10 somebody"}
	if !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
}
