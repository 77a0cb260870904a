"""Between TensorFlow and the graph, both ways: conversion, types, float64, snippets, programs."""
