#!/bin/sh
echo zebra >> answer.txt
echo hazel >> answer.txt
echo lemon >> answer.txt
echo ultra >> answer.txt
