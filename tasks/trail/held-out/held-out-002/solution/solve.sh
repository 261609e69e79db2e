#!/bin/sh
echo ocean >> answer.txt
echo lemon >> answer.txt
