"""Sets of operation types.

Source:
    Op documentation of TensorFlow 2.21 (tf.raw_ops).
"""


def op_set(names: str) -> frozenset[str]:
    """Set of names separated by white space."""
    return frozenset(names.split())


LOOPS = op_set("While StatelessWhile")
BRANCHES = op_set("If StatelessIf Case StatelessCase")
CALLS = LOOPS | BRANCHES | op_set("PartitionedCall StatefulPartitionedCall")
"""Calls whose functions TensorFlow lowers into nodes of the graph."""

# Control flow of TensorFlow 1.
ENTERS = op_set("Enter RefEnter")
EXITS = op_set("Exit RefExit")
SWITCHES = op_set("Switch RefSwitch")
MERGES = op_set("Merge RefMerge")
NEXT_ITERATIONS = op_set("NextIteration RefNextIteration")

# Uses of resources.
READ_OPS = op_set("""
    LookupTableExportV2 LookupTableFindV2 LookupTableSizeV2 ReadVariableOp ResourceGather ResourceGatherNd
    VarIsInitializedOp VariableShape
""")
FORWARDING_OPS = op_set("Identity Enter RefEnter Switch Merge NextIteration Exit")
UNCHANGED = op_set("VariableShape VarIsInitializedOp")
"""Reads of a variable that no assignment changes."""
ADDITIONS = op_set("AssignAddVariableOp AssignSubVariableOp")
ASSIGNMENTS = ADDITIONS | {"AssignVariableOp"}
SCATTERS = frozenset(f"ResourceScatter{how}" for how in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Update"))

# Element-wise ops, with NumPy broadcasting if they take more than one tensor.
UNARY = op_set("""
    Abs Acos Acosh Asin Asinh Atan Atanh Cast Ceil CheckNumerics Cos Cosh Digamma Elu Erf Erfc Erfinv
    Exp Expm1 Floor Identity Inv Invert IsFinite IsInf IsNan Lgamma Log Log1p LogicalNot Neg OnesLike
    PreventGradient Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Snapshot Softplus
    Softsign Sqrt Square StopGradient Tan Tanh ZerosLike
""")
BROADCASTING = op_set("""
    Add AddV2 Atan2 BitwiseAnd BitwiseOr BitwiseXor ClipByValue Div DivNoNan Equal FloorDiv FloorMod
    Greater GreaterEqual LeftShift Less LessEqual LogicalAnd LogicalOr Maximum Minimum Mod Mul MulNoNan
    NextAfter NotEqual Pow RealDiv RightShift SelectV2 SquaredDifference Sub TruncateDiv TruncateMod
    Xdivy Xlog1py Xlogy
""")
ELEMENTWISE = UNARY | BROADCASTING | op_set("AddN AccumulateNV2")
# Reductions that can be combined: op → op that combines the reductions of several tensors.
REDUCTIONS = {"Sum": "add", "Prod": "multiply", "Max": "maximum", "Min": "minimum", "All": "and", "Any": "or"}

# In-place elementwise updates; inputs other than variables, gradients and indices are scalars.
DENSE_UPDATES = op_set("""
    ResourceApplyAdaMax ResourceApplyAdadelta ResourceApplyAdagrad ResourceApplyAdagradDA
    ResourceApplyAdagradV2 ResourceApplyAdam ResourceApplyAdamWithAmsgrad ResourceApplyAddSign
    ResourceApplyCenteredRMSProp ResourceApplyFtrl ResourceApplyFtrlV2 ResourceApplyGradientDescent
    ResourceApplyKerasMomentum ResourceApplyMomentum ResourceApplyPowerSign ResourceApplyProximalAdagrad
    ResourceApplyProximalGradientDescent ResourceApplyRMSProp
""")
# Row-wise updates of the rows that ids name.
SPARSE_UPDATES = op_set("""
    ResourceSparseApplyAdadelta ResourceSparseApplyAdagrad ResourceSparseApplyAdagradDA
    ResourceSparseApplyAdagradV2 ResourceSparseApplyCenteredRMSProp ResourceSparseApplyFtrl
    ResourceSparseApplyFtrlV2 ResourceSparseApplyKerasMomentum ResourceSparseApplyMomentum
    ResourceSparseApplyProximalAdagrad ResourceSparseApplyProximalGradientDescent
    ResourceSparseApplyRMSProp
""")
