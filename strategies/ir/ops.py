"""Sets of operation types, from the op documentation of TensorFlow 2.21."""

# From the op documentation of TensorFlow 2.21 (tf.raw_ops, https://www.tensorflow.org/api_docs/python/tf/raw_ops):
# ops described as element-wise, with NumPy broadcasting where they take more than one tensor.
UNARY = frozenset(
    {
        *(
            "Abs",
            "Acos",
            "Acosh",
            "Asin",
            "Asinh",
            "Atan",
            "Atanh",
            "Cast",
            "Ceil",
            "CheckNumerics",
            "Cos",
            "Cosh",
        ),
        *("Digamma", "Elu", "Erf", "Erfc", "Erfinv", "Exp", "Expm1", "Floor", "Identity", "Inv", "Invert"),
        *("IsFinite", "IsInf", "IsNan", "Lgamma", "Log", "Log1p", "LogicalNot", "Neg", "OnesLike"),
        *(
            "PreventGradient",
            "Reciprocal",
            "Relu",
            "Relu6",
            "Rint",
            "Round",
            "Rsqrt",
            "Selu",
            "Sigmoid",
            "Sign",
        ),
        *("Sin", "Sinh", "Snapshot", "Softplus", "Softsign", "Sqrt", "Square", "StopGradient", "Tan", "Tanh"),
        *("ZerosLike",),
    }
)
BROADCASTING = frozenset(
    {
        *("Add", "AddV2", "Atan2", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "ClipByValue", "Div", "DivNoNan"),
        *("Equal", "FloorDiv", "FloorMod", "Greater", "GreaterEqual", "LeftShift", "Less", "LessEqual"),
        *("LogicalAnd", "LogicalOr", "Maximum", "Minimum", "Mod", "Mul", "MulNoNan", "NextAfter", "NotEqual"),
        *(
            "Pow",
            "RealDiv",
            "RightShift",
            "SelectV2",
            "SquaredDifference",
            "Sub",
            "TruncateDiv",
            "TruncateMod",
        ),
        *("Xdivy", "Xlog1py", "Xlogy"),
    }
)
SAME_SHAPE = frozenset({"AddN", "AccumulateNV2"})
ELEMENTWISE = UNARY | BROADCASTING | SAME_SHAPE

# Updates in place: each element of every variable moves by itself; whatever is no variable, gradient or index
# is a scalar ("Must be a scalar" in the op documentation).
DENSE_UPDATES = frozenset(
    {
        *("ResourceApplyAdaMax", "ResourceApplyAdadelta", "ResourceApplyAdagrad", "ResourceApplyAdagradV2"),
        *(
            "ResourceApplyAdagradDA",
            "ResourceApplyAdam",
            "ResourceApplyAdamWithAmsgrad",
            "ResourceApplyAddSign",
        ),
        *("ResourceApplyCenteredRMSProp", "ResourceApplyFtrl", "ResourceApplyFtrlV2"),
        *("ResourceApplyGradientDescent", "ResourceApplyKerasMomentum", "ResourceApplyMomentum"),
        *("ResourceApplyPowerSign", "ResourceApplyProximalAdagrad", "ResourceApplyProximalGradientDescent"),
        *("ResourceApplyRMSProp",),
    }
)
# Updates of the rows that the ids name, each by itself.
SPARSE_UPDATES = frozenset(
    {
        *("ResourceSparseApplyAdadelta", "ResourceSparseApplyAdagrad", "ResourceSparseApplyAdagradV2"),
        *("ResourceSparseApplyAdagradDA", "ResourceSparseApplyCenteredRMSProp", "ResourceSparseApplyFtrl"),
        *("ResourceSparseApplyFtrlV2", "ResourceSparseApplyKerasMomentum", "ResourceSparseApplyMomentum"),
        *("ResourceSparseApplyProximalAdagrad", "ResourceSparseApplyProximalGradientDescent"),
        *("ResourceSparseApplyRMSProp",),
    }
)
SCATTERS = frozenset(f"ResourceScatter{how}" for how in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Update"))
ASSIGNMENTS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})
# Reductions of several tensors' reductions are the reduction of all: by which op.
REDUCTIONS = {"Sum": "add", "Prod": "multiply", "Max": "maximum", "Min": "minimum", "All": "and", "Any": "or"}
ADDITIONS = frozenset({"AssignAddVariableOp", "AssignSubVariableOp"})
# What reads of a variable that no assignment changes.
UNCHANGED = frozenset({"VariableShape", "VarIsInitializedOp"})
