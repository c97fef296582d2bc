package advice
import ("testing";"go/parser";"go/token";"go/ast";"path/filepath";"strings";"io/fs";"fmt";"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework")
func TestRows(t *testing.T){
 _ = parser.ParseFile; _ = token.ADD; var _ ast.Node
 root:=framework.Root(t)
 for _, dir := range []string{"api", "cmd", "controllers", "internal"} {
  filepath.WalkDir(filepath.Join(root,dir),func(path string, e fs.DirEntry, err error) error {
   if e.IsDir()||!strings.HasSuffix(path,".go")||strings.HasSuffix(path,"_test.go")||strings.HasPrefix(e.Name(),"zz_gen")||strings.HasSuffix(filepath.Dir(path),"test"){return nil}
   texts,_:=textsOf(path)
   for _,x:=range texts{ if s:=stepsOf(x);len(s)>0{ rel,_:=filepath.Rel(root,path); fmt.Printf("ROW\t%s\t%s\t%q\n",rel,strings.Join(s," / "),x)}}
   return nil})
 }
}
