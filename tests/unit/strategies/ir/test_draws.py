from strategies.ir.graph import Function, FunctionRef, Graph, Node
from strategies.ir.random_ops import draws_of


def node(name, op, *inputs, **attrs):
    return Node(name=name, op=op, inputs=inputs, attrs=attrs)


def test_tensors_that_carry_draws_to_what_is_wanted():
    graph = Graph(
        nodes=(
            node("seed", "ReadVariableOp"),
            node("keys", "StatelessRandomGetKeyCounter", "seed"),
            node("drawn", "StatelessRandomUniformV2", "keys", "keys:1"),
            node("noise", "RandomStandardNormal"),
            node("loss", "Sum", "drawn", "noise"),
            node("elsewhere", "RandomUniform"),
            node("waits", "NoOp", "^elsewhere"),
            node("other", "Neg", "elsewhere"),
        )
    )
    found = draws_of(graph, ["loss"])
    assert set(found.tensors) == {"keys", "keys:1", "drawn", "noise"}
    assert found.hidden == ()
    assert draws_of(graph, ["waits"]).tensors == ()


def test_what_a_function_draws_is_hidden():
    body = Function(name="f", inputs=(), outputs=(), nodes=(node("inner", "RandomUniform"),), results={})
    calls = node("call", "PartitionedCall", f=FunctionRef("f"))
    graph = Graph(nodes=(calls, node("loss", "Neg", "call")), functions={"f": body})
    assert draws_of(graph, ["loss"]).hidden == ("call",)


def test_what_a_loop_draws_is_hidden_and_what_comes_of_the_loop_is_not():
    graph = Graph(
        nodes=(
            node("begin", "Const"),
            node("enter", "Enter", "begin", frame_name=b"loop"),
            node("inside", "RandomUniform", "enter"),
            node("waiting", "RandomUniform", "^enter"),
            node("sum", "AddV2", "inside", "waiting"),
            node("exit", "Exit", "sum"),
            node("after", "RandomUniform", "exit"),
            node("loss", "Neg", "after"),
        )
    )
    found = draws_of(graph, ["loss"])
    assert found.hidden == ("inside", "waiting")
    assert found.tensors == ("after",)
