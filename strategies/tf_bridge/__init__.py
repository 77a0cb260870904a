"""Between TensorFlow and the graph: conversion, capture, float64 and snippets."""
